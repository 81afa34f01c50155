//! Measures the speed of each decoder layer, with libipt, iptr-decoder, iptr-edge-analyzer and ptcov in the same run.
//!
//! The decoders take turns, and the fastest turn of each counts, in the processor time of the thread: on a machine that
//! also does other work, this is the best measure of the program. Every decoder's output is used in the same way: it is
//! added up, and for equal layers the sums must be equal.

mod capi;
mod clock;
mod instructions;
mod layers;
mod load;
mod peers;
mod plot;
mod race;
mod record;
mod recorder;
mod report;
mod scaling;
mod synthetic;

use anyhow::{Context, Result, bail};
use clap::Args;
use layers::{LAYERS, Setup};
use load::{Load, recorded_load};
use peers::Peers;
use pugmark_decoder_core::image::Image;
use pugmark_harness::libipt_speed::Libipt;
use report::{Report, Row};
use scaling::Curve;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// The options of `cargo xtask bench`.
#[derive(Args)]
pub struct BenchOptions {
    /// Seconds for each layer of each decoder
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Measure only recordings whose names contain this, such as python3 or -timing; can be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Measure only this layer; can be repeated
    #[arg(long, value_name = "LAYER")]
    layer: Vec<String>,
    /// Make the recordings anew, and measure nothing
    #[arg(long)]
    record: bool,
    /// Measure made traces of random programs instead of recordings: quick, but no program is like them
    #[arg(long)]
    made: bool,
    /// Bytes of trace to make
    #[arg(long, default_value_t = 4 << 20, requires = "made")]
    bytes: usize,
    /// Measure this trace instead of the recordings; needs --image
    #[arg(long, requires = "image")]
    trace: Option<PathBuf>,
    /// The code of the recorded trace: `{"sections":[{"file","offset","len","vaddr"}]}`, files beside it
    #[arg(long, requires = "trace")]
    image: Option<PathBuf>,
    /// Compare with this libipt instead of the installed one
    #[arg(long, value_name = "FILE")]
    libipt: Option<PathBuf>,
    /// Compare with libipt only: the others are built on first use, which takes a minute
    #[arg(long)]
    no_peers: bool,
    /// Measure how many times as long programs take while they are recorded
    #[arg(long, conflicts_with_all = ["record", "made", "trace", "capi", "plots", "json"])]
    recorder: bool,
    /// Measure our libipt.so.2 beside the installed one, each called through its C interface
    #[arg(long, conflicts_with = "plots")]
    capi: bool,
    /// Count machine instructions by callgrind, of python3 and python3-timing if --only does not name others
    #[arg(long, conflicts_with_all = ["record", "made", "trace", "capi", "plots", "json", "recorder"])]
    pub instructions: bool,
    /// The argument with which --instructions calls this program
    #[arg(long, hide = true, value_name = "RECORDING,LAYER,TIMES")]
    pub decode: Option<String>,
    /// Write all numbers into a file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write plots into a folder, and measure what the cost depends on
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
}

/// Measures as the options select, in this process, which must be an optimised build.
///
/// # Errors
/// If a recording cannot be made or read, or two decoders disagree on its content.
pub fn bench(options: &BenchOptions) -> Result<()> {
    match &options.decode {
        Some(what) => instructions::decode_in_callgrind(what),
        None => measure(options),
    }
}

fn measure(options: &BenchOptions) -> Result<()> {
    if options.recorder {
        return recorder::measure();
    }
    // libipt reads code from files, so the generated code is written here.
    let scratch = std::env::temp_dir().join(format!("pugmark-bench-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let done = bench_in(options, &scratch);
    fs::remove_dir_all(&scratch)?;
    done
}

fn loads(options: &BenchOptions, scratch: &Path) -> Result<Vec<Load>> {
    match (&options.trace, &options.image) {
        (Some(trace), Some(image)) => {
            Ok(vec![recorded_load(&trace.display().to_string(), trace, image, false)?])
        }
        _ if options.made => [false, true]
            .map(|timing| synthetic::synthetic_load(options.bytes, timing, scratch))
            .into_iter()
            .collect(),
        _ => record::recordings(&options.only, options.record),
    }
}

fn bench_in(options: &BenchOptions, scratch: &Path) -> Result<()> {
    if let Some(unknown) = options.layer.iter().find(|name| LAYERS.iter().all(|layer| layer.name != **name)) {
        bail!("no layer {unknown}; there are {}", LAYERS.map(|layer| layer.name).join(", "));
    }
    let is_wanted = |layer: &str| options.layer.is_empty() || options.layer.iter().any(|name| name == layer);
    if options.instructions {
        return instructions::count(&options.only, is_wanted);
    }
    let loads = loads(options, scratch)?;
    if options.record {
        return Ok(());
    }
    let libipt = match &options.libipt {
        Some(file) => {
            Some(Libipt::load_from(file).with_context(|| format!("no libipt in {}", file.display()))?)
        }
        None => Libipt::load(),
    };
    if libipt.is_none() {
        println!("libipt is not installed: no comparison with it");
    }
    if options.capi {
        let mut report = Report::new();
        let least = Duration::from_secs_f64(options.seconds);
        capi::Libraries::load(libipt)?.measure(&loads, &mut report, least, is_wanted)?;
        return finish(options, &report, &loads);
    }
    let peers = if options.no_peers { None } else { peers() };
    let mut report = Report::new();
    for load in &loads {
        let sections = load.sections();
        let setup =
            Setup { load, image: Image::new(&sections), libipt: libipt.as_ref(), peers: peers.as_ref() };
        println!("\n{}: {} bytes", load.name, load.trace.len());
        for layer in &LAYERS {
            if !is_wanted(layer.name) {
                continue;
            }
            let speeds = layer.measure(&setup, Duration::from_secs_f64(options.seconds))?;
            let row = Row { load: &load.name, bytes: load.trace.len(), layer: layer.name, speeds };
            println!("{row}");
            report.add(&row);
        }
    }
    finish(options, &report, &loads)
}

/// Prints and writes the results of all layers.
fn finish(options: &BenchOptions, report: &Report, loads: &[Load]) -> Result<()> {
    report.print_ratios(loads);
    if let Some(file) = &options.json {
        fs::write(file, report.json()?).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if let Some(folder) = &options.plots {
        plots(report, loads, folder).with_context(|| format!("no plots in {}", folder.display()))?;
    }
    Ok(())
}

/// Returns the decoders beside libipt, if they can be built.
fn peers() -> Option<Peers> {
    Peers::build().map_err(|error| println!("no comparison but with libipt: {error:#}")).ok()
}

fn plots(report: &Report, loads: &[Load], folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let write = |name: &str, svg: String| fs::write(folder.join(name), svg);
    for (timing, name) in [(false, "speed.svg"), (true, "speed-timing.svg")] {
        let named: Vec<_> = loads.iter().filter(|load| load.timing == timing).collect();
        if let Some(load) = named.first() {
            write(name, report.speed_plot(&load.name))?;
        }
    }
    let plain: Vec<_> =
        loads.iter().filter(|load| !load.timing && !load.name.ends_with("-returns")).take(3).collect();
    let draw = |name, what: &str, along, measure: fn(&Load) -> Vec<Curve>| {
        let curves: Vec<_> = plain.iter().flat_map(|load| measure(load)).collect();
        println!("\nmilliseconds by {along}:");
        for Curve { name, points } in &curves {
            let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.0}: {y:.2}")).collect();
            println!("{name:>16}  {}", points.join("  "));
        }
        let is_logarithmic = name != "length.svg";
        let title = format!("Cost against {what}");
        write(name, plot::curves(&title, along, "milliseconds", is_logarithmic, &curves))
    };
    draw("length.svg", "the length of the trace", "kilobytes of trace", scaling::by_length)?;
    draw("image.svg", "the size of the image", "sections of the image", scaling::by_image)?;
    let cache = format!("the size of the cache ({} bytes a block)", report::BYTES_PER_BLOCK);
    draw("cache.svg", &cache, "blocks that have room", scaling::by_cache)?;
    draw("slices.svg", "the size of the slices that a trace comes in", "bytes a slice", scaling::by_slice)?;
    println!("plots: {}", folder.display());
    Ok(())
}
