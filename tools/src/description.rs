//! Reads the files beside a trace that describe its recording: the processor, its clocks, and what is true of it.

use crate::{cpu, file::read_regular};
use pugmark_decoder_core::{config::Clocks, errata::Cpu};
use pugmark_recorder::files::TRUTH;
use serde::Deserialize;
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// The contents of `truth.json`. Everything in that file is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The file.
    pub file: PathBuf,
    /// The processor.
    pub cpu: Option<Cpu>,
    /// Its clocks.
    pub clocks: Clocks,
    /// The number of instructions that were traced, and their hash.
    pub truth: Option<(u64, u64)>,
    /// The trace's length in bytes.
    pub bytes: Option<u64>,
    /// True if the recorder did not come to the trace's end.
    pub unfinished: bool,
}

#[derive(Deserialize)]
struct File {
    count: Option<u64>,
    hash: Option<String>,
    bytes: Option<u64>,
    cpu: Option<String>,
    cpuid_15h: Option<Ratio>,
    mtc_freq: Option<u8>,
    nom_freq: Option<u8>,
    #[serde(default)]
    unfinished: bool,
}

#[derive(Deserialize)]
struct Ratio {
    eax: u32,
    ebx: u32,
}

/// A description that cannot be read.
#[derive(Debug)]
pub struct DescriptionError {
    /// The file.
    pub file: PathBuf,
    /// Why.
    pub error: io::Error,
}

impl fmt::Display for DescriptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} does not describe a recording", self.file.display())
    }
}

impl std::error::Error for DescriptionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl Description {
    /// Reads the description of the recording in a folder; `None` if the folder has none.
    ///
    /// # Errors
    /// If the file cannot be read, or does not hold a description.
    pub fn in_folder(folder: &Path) -> Result<Option<Self>, DescriptionError> {
        let file = folder.join(TRUTH);
        let text = match read_regular(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text,
        };
        let read = || Self::parse(&text?, file.clone());
        read().map(Some).map_err(|error| DescriptionError { file: file.clone(), error })
    }

    /// Reads the description of the recording that a trace belongs to.
    ///
    /// # Errors
    /// As [`in_folder`](Self::in_folder).
    pub fn beside(trace: &Path) -> Result<Option<Self>, DescriptionError> {
        match trace.parent() {
            Some(folder) => Self::in_folder(folder),
            None => Ok(None),
        }
    }

    fn parse(text: &[u8], file: PathBuf) -> io::Result<Self> {
        let read: File = serde_json::from_slice(text)?;
        let cpu = read.cpu.as_deref().map(cpu::parse).transpose();
        let wrong = |field, value: Option<String>, expected| {
            io::Error::other(format!("its {field} {:?} is not {expected}", value.unwrap_or_default()))
        };
        let cpu = cpu.map_err(|_| wrong("cpu", read.cpu.clone(), "family/model/stepping"))?.flatten();
        let hash = read.hash.as_deref().map(|hash| hash.strip_prefix("0x").unwrap_or(hash));
        let hash = hash.map(|digits| u64::from_str_radix(digits, 16)).transpose();
        let hash = hash.map_err(|_| wrong("hash", read.hash.clone(), "a hexadecimal number of 64 bits"))?;
        let (cpuid_15h_eax, cpuid_15h_ebx) = read.cpuid_15h.map_or((0, 0), |ratio| (ratio.eax, ratio.ebx));
        let (mtc_freq, nom_freq) = (read.mtc_freq.unwrap_or(0), read.nom_freq.unwrap_or(0));
        let clocks = Clocks { mtc_freq, nom_freq, cpuid_15h_eax, cpuid_15h_ebx, ..Clocks::default() };
        let unfinished = read.unfinished;
        Ok(Self { file, cpu, clocks, truth: read.count.zip(hash), bytes: read.bytes, unfinished })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_recorder::files::TRACE;
    use std::fs;

    fn parse(text: &str) -> io::Result<Description> {
        Description::parse(text.as_bytes(), PathBuf::new())
    }

    #[test]
    fn an_error_names_the_file_that_is_not_a_description_and_the_reason() {
        use std::error::Error as _;

        let error = io::Error::other("no colon");
        let error = DescriptionError { file: "there/truth.json".into(), error };
        assert_eq!(error.to_string(), "there/truth.json does not describe a recording");
        assert_eq!(error.source().unwrap().to_string(), "no colon");
    }

    #[test]
    fn what_is_not_said_is_not_known() {
        let clocks =
            Clocks { mtc_freq: 3, nom_freq: 35, cpuid_15h_eax: 2, cpuid_15h_ebx: 292, ..Clocks::default() };
        let whole = r#"{"count": 5, "hash": "0x0a", "bytes": 7, "cpu": "6/94/3", "mtc_freq": 3, "nom_freq": 35,
            "cpuid_15h": {"eax": 2, "ebx": 292}, "else": []}"#;
        let expected = Description {
            cpu: Some(Cpu::intel(6, 94, 3)),
            clocks,
            truth: Some((5, 10)),
            bytes: Some(7),
            ..Description::default()
        };
        assert_eq!(parse(whole).unwrap(), expected);
        assert_eq!(parse("{}").unwrap(), Description::default());
        assert_eq!(parse(r#"{"cpu": "none", "count": 5}"#).unwrap(), Description::default());
        assert!(parse(r#"{"unfinished": true}"#).unwrap().unfinished);
        for (text, error) in [
            ("", "EOF while parsing"),
            ("[]", "invalid length 0"),
            (r#"{"cpu": "6"}"#, "its cpu \"6\" is not family/model/stepping"),
            (r#"{"hash": "x"}"#, "its hash \"x\" is not a hexadecimal number of 64 bits"),
            (r#"{"mtc_freq": 256}"#, "invalid value: integer `256`"),
        ] {
            let found = parse(text).unwrap_err().to_string();
            assert!(found.starts_with(error), "{text}: {found}");
        }
    }

    #[test]
    fn a_folder_without_a_description_has_none() {
        let folder = std::env::temp_dir().join(format!("pugmark-description-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert!(matches!(Description::beside(&folder.join(TRACE)), Ok(None)));
        fs::write(folder.join(TRUTH), "{").unwrap();
        let error = Description::beside(&folder.join(TRACE)).unwrap_err();
        assert_eq!(error.file, folder.join(TRUTH));
        fs::write(folder.join(TRUTH), r#"{"cpu": "skylake"}"#).unwrap();
        let found = Description::in_folder(&folder).unwrap().unwrap();
        assert_eq!((found.cpu, found.file), (Some(Cpu::intel(6, 94, 0)), folder.join(TRUTH)));
        fs::remove_dir_all(&folder).unwrap();
    }
}
