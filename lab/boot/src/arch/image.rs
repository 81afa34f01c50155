//! The addresses of the image's parts.

use core::ops::Range;

macro_rules! linker_symbols {
    ($($name:ident = $symbol:ident;)*) => {
        unsafe extern "C" { $(static $symbol: u8;)* }
        $(fn $name() -> u64 {
            &raw const $symbol as u64
        })*
    };
}

linker_symbols! {
    image_start = __image_start;
    text_end = __text_end;
    rodata_end = __rodata_end;
    image_end = __image_end;
    filtered_start = __filtered_start;
    filtered_end = __filtered_end;
    stopping_start = __stopping_start;
    stopping_end = __stopping_end;
}

/// Returns the whole image.
pub(crate) fn all() -> Range<u64> {
    image_start()..image_end()
}

/// Returns the code, and the headers before it.
pub(crate) fn text() -> Range<u64> {
    image_start()..text_end()
}

/// Returns the constants.
pub(crate) fn rodata() -> Range<u64> {
    text_end()..rodata_end()
}

/// Returns the code that range filters trace; its symbols are `__filtered_start` and `__filtered_end`.
pub(crate) fn filtered() -> Range<u64> {
    filtered_start()..filtered_end()
}

/// Returns the code whose execution ends the trace (TraceStop): from `__stopping_start` to `__stopping_end`.
pub(crate) fn stopping() -> Range<u64> {
    stopping_start()..stopping_end()
}

/// Returns the bytes of [`text`].
pub(crate) fn text_bytes() -> &'static [u8] {
    let text = text();
    // SAFETY: the linker placed the section there, it is always mapped, and nothing writes to it.
    unsafe { core::slice::from_raw_parts(text.start as *const u8, (text.end - text.start) as usize) }
}
