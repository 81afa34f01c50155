//! `--cpu F/M[/S]`.

use crate::number;
use pugmark_decoder_core::errata::Cpu;

/// Not a processor.
#[derive(Debug, PartialEq, Eq)]
pub struct BadCpu;

/// The processor that `text` names; `None` for `none`. A missing stepping is 0.
///
/// # Errors
/// [`BadCpu`] for anything else, and for a family above 65535 or a model or stepping above 255.
pub fn parse(text: &str) -> Result<Option<Cpu>, BadCpu> {
    if text == "none" {
        return Ok(None);
    }
    let mut fields = text.split('/');
    let family = fields.next().and_then(number::parse).and_then(|family| family.try_into().ok());
    let model = fields.next().and_then(number::parse).and_then(|model| model.try_into().ok());
    // What is behind the second slash may be nothing, as for libipt.
    let stepping =
        number::parse_or_zero(fields.next().unwrap_or("0")).and_then(|stepping| stepping.try_into().ok());
    let (Some(family), Some(model), Some(stepping), None) = (family, model, stepping, fields.next()) else {
        return Err(BadCpu);
    };
    Ok(Some(Cpu::intel(family, model, stepping)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_family_model_and_stepping() {
        let cpu = |family, model, stepping| Ok(Some(Cpu::intel(family, model, stepping)));
        for (text, expected) in [
            ("none", Ok(None)),
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
            ("x", Err(BadCpu)),
            ("", Err(BadCpu)),
        ] {
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }
}
