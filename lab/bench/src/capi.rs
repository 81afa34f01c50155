//! Our libipt.so.2 compared with the installed one: both in this process, called by the same code.

use super::{
    load::Load,
    race::{Contender, Speed, race},
    report::{Report, Row},
};
use anyhow::{Context, Result, ensure};
use pugmark_builds::cargo::cargo;
use pugmark_harness::{
    images::target_folder,
    libipt_speed::{Libipt, LibiptImage, TimedDecode},
};
use std::time::Duration;

/// The layers to measure: name, and function.
const LAYERS: [(&str, Measure); 4] =
    [("packets", packets), ("query", query), ("insns", insns), ("blocks", blocks)];

type Measure = fn(&Libraries, &Load, Duration) -> Result<Vec<Speed>>;

/// The two libraries: ours and the installed one.
pub(super) struct Libraries([Libipt; 2]);

const NAMES: [&str; 2] = ["pugmark-capi", "libipt"];

impl Libraries {
    /// Builds our library, and loads both.
    pub(super) fn load(theirs: Option<Libipt>) -> Result<Self> {
        let theirs = theirs.context("libipt is not installed: nothing to compare with")?;
        cargo(&["build", "--release", "--package", "pugmark-capi"], &[])?;
        // The loader knows libraries by their soname, and both have the same, so theirs has to come first.
        let file = target_folder().join("release/libipt.so");
        let ours = Libipt::load_from(&file).with_context(|| format!("no library in {}", file.display()))?;
        Ok(Self([ours, theirs]))
    }

    /// Measures each layer whose name is wanted, on each trace.
    pub(super) fn measure(
        &self,
        loads: &[Load],
        report: &mut Report,
        least: Duration,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<()> {
        for load in loads {
            println!("\n{}: {} bytes", load.name, load.trace.len());
            for (layer, measure) in LAYERS.into_iter().filter(|(layer, _)| is_wanted(layer)) {
                let speeds = measure(self, load, least)?;
                ensure!(
                    speeds.len() == 2 && speeds[0].decoded == speeds[1].decoded,
                    "{}, {layer}: the libraries differ: {speeds:?}",
                    load.name
                );
                let row = Row { load: &load.name, bytes: load.trace.len(), layer, speeds };
                println!("{row}");
                report.add(&row);
            }
        }
        Ok(())
    }

    fn race<'a>(
        &'a self,
        least: Duration,
        run: impl Fn(&'a Libipt) -> Option<TimedDecode> + Copy + 'a,
    ) -> Vec<Speed> {
        let contender = |(name, library)| Contender { name, run: Box::new(move || run(library)) };
        race(NAMES.into_iter().zip(&self.0).map(contender).collect(), least)
    }

    fn race_images(
        &self,
        load: &Load,
        least: Duration,
        run: impl Fn(&LibiptImage<'_>) -> Option<TimedDecode> + Copy,
    ) -> Result<Vec<Speed>> {
        let [ours, theirs] = self.0.each_ref().map(|library| library.image(&load.files));
        let images = [ours?, theirs?];
        let contender = |(name, image)| Contender { name, run: Box::new(move || run(image)) };
        Ok(race(NAMES.into_iter().zip(&images).map(contender).collect(), least))
    }
}

fn packets(libraries: &Libraries, load: &Load, least: Duration) -> Result<Vec<Speed>> {
    Ok(libraries.race(least, |library| library.packets(&load.trace).ok()))
}

fn query(libraries: &Libraries, load: &Load, least: Duration) -> Result<Vec<Speed>> {
    Ok(libraries.race(least, |library| library.query(&load.trace).ok()))
}

fn insns(libraries: &Libraries, load: &Load, least: Duration) -> Result<Vec<Speed>> {
    libraries.race_images(load, least, |image| image.insns(&load.trace).ok())
}

/// Measures blocks. The sum is their number: both libraries make the same ones.
fn blocks(libraries: &Libraries, load: &Load, least: Duration) -> Result<Vec<Speed>> {
    libraries.race_images(load, least, |image| {
        image.blocks(&load.trace).ok().map(|(count, sum)| TimedDecode { count, sum })
    })
}
