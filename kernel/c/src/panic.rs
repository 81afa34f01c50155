//! The end of a panic: the kernel's own.

use core::ffi::c_char;
use core::hint::spin_loop;
use core::panic::PanicInfo;

unsafe extern "C" {
    /// Ends the kernel, which has this function. `file` has `bytes` bytes and no 0 at its end.
    fn pugmark_panicked(file: *const c_char, bytes: usize, line: u32);
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let (file, line) = info.location().map_or(("", 0), |place| (place.file(), place.line()));
    // SAFETY: the kernel's function, with a text that is there.
    unsafe { pugmark_panicked(file.as_ptr().cast(), file.len(), line) };
    // It does not return; if it does, this processor goes no further.
    loop {
        spin_loop();
    }
}

/// Named by the core library of a hosted target, which unwinds. Nothing does here.
#[cfg(not(target_os = "none"))]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
