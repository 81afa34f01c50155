//! The functions of a machine's kernel, by which tracing starts and stops: those of an ELF file, or of a text as
//! System.map and /proc/kallsyms are.

use crate::{
    linux::{
        Missing, RecordError, RecordOptions, Trigger,
        filter::{is_code, is_named},
    },
    names::readable,
};
use object::{Object, ObjectSymbol};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A function, and the file or the kernel's module that has it.
struct KernelFunction {
    name: String,
    address: u64,
    /// The size in bytes; 0 if it is not known.
    size: u64,
    object: String,
}

/// The functions of a file.
struct KernelFunctions(Vec<KernelFunction>);

impl KernelFunctions {
    fn read(file: &Path) -> io::Result<Self> {
        let bytes = fs::read(file)?;
        if !bytes.starts_with(b"\x7fELF") {
            return Ok(Self(String::from_utf8_lossy(&bytes).lines().filter_map(of_line).collect()));
        }
        let elf = object::File::parse(&*bytes).map_err(io::Error::other)?;
        let of_symbol = |symbol: object::Symbol<'_, '_>| {
            Some(KernelFunction {
                name: readable(symbol.name().ok()?).into_owned(),
                address: symbol.address(),
                size: symbol.size(),
                object: file.to_string_lossy().into_owned(),
            })
        };
        Ok(Self(elf.symbols().filter(is_code).filter_map(of_symbol).collect()))
    }

    /// Returns the address at a distance from the begin of a function.
    fn find(&self, object: Option<&str>, name: &str, offset: u64) -> Result<u64, Missing> {
        let is_it = |function: &&KernelFunction| {
            object.is_none_or(|object| function.object == object || is_named(&function.object, object))
        };
        let of_object: Vec<_> = self.0.iter().filter(is_it).collect();
        if of_object.is_empty() {
            let mut objects: Vec<_> = self.0.iter().map(|function| function.object.clone()).collect();
            objects.sort_unstable();
            objects.dedup();
            return Err(Missing::Object(objects));
        }
        let mut found: Vec<_> = of_object.iter().filter(|function| function.name == name).collect();
        found.sort_unstable_by_key(|function| function.address);
        found.dedup_by_key(|function| function.address);
        match found[..] {
            [] => Err(Missing::Function(of_object.iter().map(|function| function.name.clone()).collect())),
            [one] if one.size > 0 && offset >= one.size => Err(Missing::Offset),
            [one] => Ok(one.address.wrapping_add(offset)),
            _ => Err(Missing::Several(found.iter().map(|function| function.address).collect())),
        }
    }
}

/// Returns the function in a line: its address, its type, its name, and in brackets its module. An address that is 0
/// was hidden from the reader.
fn of_line(line: &str) -> Option<KernelFunction> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok().filter(|address| *address != 0)?;
    words.next().filter(|kind| matches!(*kind, "t" | "T" | "w" | "W"))?;
    let name = readable(words.next()?).into_owned();
    let object = words.next().unwrap_or("vmlinux").trim_matches(['[', ']']).to_owned();
    Some(KernelFunction { name, address, size: 0, object })
}

/// Returns the addresses of the options' triggers, as far as they are places: those of functions from the file that has
/// their names.
pub(super) fn places(options: &RecordOptions) -> Result<[Option<u64>; 2], RecordError> {
    let place = |option, trigger: &Option<Trigger>| match trigger {
        Some(Trigger::Address(address)) => Ok(Some(*address)),
        Some(trigger @ Trigger::Function { object, name, offset }) => {
            let file = file(options, option, trigger)?;
            let functions = KernelFunctions::read(&file).map_err(|error| {
                let why = format!("cannot read the functions of {}: {error}", file.display());
                RecordError::Prepare(io::Error::other(why))
            })?;
            let found = functions.find(object.as_deref(), name, *offset).map_err(|missing| {
                RecordError::NoPlace { option, trigger: trigger.clone().into(), file: Some(file), missing }
            })?;
            Ok(Some(found.wrapping_add(options.kernel_offset)))
        }
        _ => Ok(None),
    };
    Ok([place("--start", &options.start)?, place("--stop", &options.stop)?])
}

/// Returns the file with the kernel's functions: that which the options name, or the emulator's kernel, if that is an
/// ELF file.
fn file(options: &RecordOptions, option: &'static str, trigger: &Trigger) -> Result<PathBuf, RecordError> {
    let is_elf = |file: &PathBuf| {
        let mut magic = [0; 4];
        let read = fs::File::open(file).and_then(|mut file| io::Read::read_exact(&mut file, &mut magic));
        read.is_ok() && magic == *b"\x7fELF"
    };
    let of_emulator = || Some(PathBuf::from(super::vcpu::kernel(options))).filter(is_elf);
    options.kernel_symbols.clone().or_else(of_emulator).ok_or_else(|| RecordError::NoPlace {
        option,
        trigger: trigger.clone().into(),
        file: None,
        missing: Missing::Object(vec![]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_a_text_is_found_by_its_name_and_its_module() {
        let text = "ffffffff81000000 T _stext\nffffffff81000010 t twice\nffffffff81000020 t twice\n\
            ffffffff82000000 D data\n0000000000000000 T hidden\nffffffffc0000000 t twice\t[ext4]\nnoise";
        let functions = KernelFunctions(text.lines().filter_map(of_line).collect());
        let find = |object, name| functions.find(object, name, 4);
        assert_eq!(find(None, "_stext"), Ok(0xffff_ffff_8100_0004));
        assert_eq!(find(Some("ext4"), "twice"), Ok(0xffff_ffff_c000_0004));
        let at = |low: u64| 0xffff_ffff_8100_0000 + low;
        assert_eq!(find(Some("vmlinux"), "twice"), Err(Missing::Several(vec![at(0x10), at(0x20)])));
        for name in ["data", "hidden"] {
            let names = ["_stext", "twice", "twice", "twice"].map(String::from);
            assert_eq!(find(None, name), Err(Missing::Function(names.into())));
        }
        assert_eq!(find(Some("xfs"), "x"), Err(Missing::Object(vec!["ext4".into(), "vmlinux".into()])));
    }

    #[test]
    fn a_function_of_an_elf_file_ends() {
        let file = std::env::current_exe().unwrap();
        let functions = KernelFunctions::read(&file).unwrap();
        let own = functions.0.iter().find(|function| function.size > 4 && function.name == "main").unwrap();
        assert_eq!(functions.find(None, "main", own.size - 1), Ok(own.address + own.size - 1));
        assert_eq!(functions.find(None, "main", own.size), Err(Missing::Offset));
        let name = file.file_name().unwrap().to_str().unwrap();
        assert_eq!(functions.find(Some(name), "main", 0), Ok(own.address));
    }
}
