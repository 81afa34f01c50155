//! Reads the value of the option `--cpu NAME|F/M[/S]|auto|none`.

use crate::{number, processors};
use pugmark_decoder_core::errata::Cpu;

/// The error for a text that is not a processor.
#[derive(Debug, PartialEq, Eq)]
pub struct BadCpu;

/// Returns the processor that `text` names or numbers; the host's for `auto`, `None` for `none`.
///
/// # Errors
/// Those of [`numbers`], if the text is not a name either.
pub fn parse(text: &str) -> Result<Option<Cpu>, BadCpu> {
    match text {
        "none" => Ok(None),
        "auto" => processors::host().map(Some).ok_or(BadCpu),
        _ => processors::by_name(text).map_or_else(|| numbers(text), Ok).map(Some),
    }
}

/// Returns the processor with the family, model and stepping in `text`. A missing stepping is 0.
///
/// # Errors
/// [`BadCpu`] for anything else, and for a family above 65535 or a model or stepping above 255.
pub fn numbers(text: &str) -> Result<Cpu, BadCpu> {
    let (family, rest) = text.split_once('/').ok_or(BadCpu)?;
    // Like libipt, allow an empty stepping after the second slash. A third slash cannot be part of a number.
    let (model, stepping) = rest.split_once('/').unwrap_or((rest, "0"));
    let family = number::parse(family).and_then(|family| family.try_into().ok());
    let model = number::parse(model).and_then(|model| model.try_into().ok());
    let stepping = number::parse_or_zero(stepping).and_then(|stepping| stepping.try_into().ok());
    let (Some(family), Some(model), Some(stepping)) = (family, model, stepping) else {
        return Err(BadCpu);
    };
    Ok(Cpu::intel(family, model, stepping))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_family_model_and_stepping() {
        let cpu = |family, model, stepping| Ok(Some(Cpu::intel(family, model, stepping)));
        for (text, expected) in [
            ("none", Ok(None)),
            ("auto", processors::host().map(Some).ok_or(BadCpu)),
            ("skylake", cpu(6, 94, 0)),
            ("6/78", cpu(6, 78, 0)),
            ("6/78/3", cpu(6, 78, 3)),
            ("0x6/0x4e/0x3", cpu(6, 78, 3)),
            ("65535/255/255", cpu(65535, 255, 255)),
            ("65536/1", Err(BadCpu)),
            ("6/256", Err(BadCpu)),
            ("6/1/256", Err(BadCpu)),
            ("6", Err(BadCpu)),
            ("6/", Err(BadCpu)),
            ("6/1/", cpu(6, 1, 0)),
            ("6/1/x", Err(BadCpu)),
            ("6/1/2/3", Err(BadCpu)),
            ("6/1/2/", Err(BadCpu)),
            ("6/1//", Err(BadCpu)),
            ("/1", Err(BadCpu)),
            ("x", Err(BadCpu)),
            ("", Err(BadCpu)),
        ] {
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }
}
