//! Prints the message of a kernel that panics.

use core::fmt::{Arguments, Write};
use spin::Mutex;

/// Writes to the port in `kept`. If that is locked, perhaps by the panicking code, which will never release it, writes
/// to a newly made port.
pub fn write<W: Write>(kept: &Mutex<Option<W>>, anew: impl FnOnce() -> Option<W>, words: Arguments<'_>) {
    let mut port = match kept.try_lock() {
        // The port is taken out, so that a panic while writing writes nothing a second time.
        Some(mut port) => port.take(),
        None => anew(),
    };
    if let Some(port) = &mut port {
        // No one is left to whom an error could be reported.
        let _ = port.write_fmt(words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::rc::Rc;
    use alloc::string::String;
    use core::cell::RefCell;

    struct FakePort(Rc<RefCell<String>>);

    impl Write for FakePort {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            self.0.borrow_mut().write_str(text)
        }
    }

    #[test]
    fn the_message_comes_out_whoever_holds_the_port() {
        for held in [false, true] {
            let said = Rc::new(RefCell::new(String::new()));
            let port = || Some(FakePort(said.clone()));
            let kept = Mutex::new(port());
            let guard = held.then(|| kept.lock());
            write(&kept, port, format_args!("{}", "help"));
            assert_eq!(*said.borrow(), "help", "{held}");
            drop(guard);
        }
    }

    #[test]
    fn without_a_port_there_are_none() {
        write(&Mutex::new(None::<String>), || unreachable!("the port is free"), format_args!("help"));
        let kept = Mutex::new(None::<String>);
        let _guard = kept.lock();
        write(&kept, || None, format_args!("help"));
    }
}
