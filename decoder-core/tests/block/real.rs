//! Traces that real processors wrote.

use crate::{
    common::{everywhere, recorded},
    compare::compare,
};
use pugmark_decoder_core::{config::Config, image::Image};

#[test]
fn real_traces_have_the_known_instructions() {
    let folder = recorded::folder();
    for recorded in recorded::TRACES {
        let name = recorded.trace;
        let code = recorded.code(&folder);
        let config = Config { errata: recorded.errata(), ..Config::new() };
        let sum = compare(&recorded.bytes(&folder), Image::new(&everywhere(&code)), config)
            .unwrap_or_else(|what| panic!("{name}: {what}"));
        assert_eq!((sum.insns, sum.hash.value()), (recorded.instructions, recorded.hash), "{name}");
    }
}
