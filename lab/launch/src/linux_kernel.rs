//! Extracts the kernel's ELF file from the file that distributions ship.

use anyhow::{Context, Result, bail, ensure};
use std::io::Read;

/// Offset of the number of setup sectors; `Documentation/arch/x86/boot.rst` of Linux has these fields.
const SETUP_SECTORS: usize = 0x1f1;
/// Offset of `HdrS`.
const MAGIC: usize = 0x202;
/// Offset of the payload's offset and of its length, from the end of the setup sectors on.
const PAYLOAD: usize = 0x248;
const SECTOR: usize = 512;

/// A packing of the payload: the bytes with which it begins, a flag that the unpacked length follows it, and the
/// program that unpacks it.
struct Packing {
    name: &'static str,
    magic: &'static [u8],
    has_length: bool,
    unpack: fn(&[u8]) -> Result<Vec<u8>>,
}

const PACKINGS: [Packing; 4] = [
    Packing { name: "LZ4", magic: &[0x02, 0x21, 0x4c, 0x18], has_length: true, unpack: unpack_lz4 },
    Packing { name: "zstd", magic: &[0x28, 0xb5, 0x2f, 0xfd], has_length: true, unpack: unpack_zstd },
    Packing { name: "xz", magic: &[0xfd, b'7', b'z', b'X', b'Z', 0], has_length: true, unpack: unpack_xz },
    Packing { name: "gzip", magic: &[0x1f, 0x8b, 8], has_length: false, unpack: unpack_gzip },
];

/// Returns the ELF file (`vmlinux`) in a Linux kernel's file, which is a bzImage or that ELF file itself.
///
/// # Errors
/// If it is neither, or its payload is damaged or in an unknown packing.
pub fn vmlinux(file: Vec<u8>) -> Result<Vec<u8>> {
    if file.starts_with(b"\x7fELF") {
        return Ok(file);
    }
    let payload = payload(&file)?;
    let packing = PACKINGS.iter().find(|packing| payload.starts_with(packing.magic));
    let packing = packing.with_context(|| {
        format!(
            "the kernel is packed in a way that is not known: it begins with {:02x?}",
            &payload[..payload.len().min(8)]
        )
    })?;
    let (packed, length) = match packing.has_length {
        true => payload.split_last_chunk::<4>().context("the kernel's payload is too short")?,
        false => (payload, &[0; 4]),
    };
    let unpacked =
        (packing.unpack)(packed).with_context(|| format!("cannot unpack the kernel ({})", packing.name))?;
    let length = u32::from_le_bytes(*length) as usize;
    ensure!(
        !packing.has_length || unpacked.len() == length,
        "the kernel unpacks to {} bytes instead of {length}",
        unpacked.len()
    );
    ensure!(unpacked.starts_with(b"\x7fELF"), "what the kernel's file unpacks to is no ELF file");
    Ok(unpacked)
}

/// Returns a file's content, without the packing of gzip if it has that.
///
/// # Errors
/// If it is packed, and damaged.
pub fn unpacked(file: Vec<u8>) -> Result<Vec<u8>> {
    let [.., gzip] = &PACKINGS;
    if !file.starts_with(gzip.magic) {
        return Ok(file);
    }
    (gzip.unpack)(&file).context("cannot unpack the file (gzip)")
}

/// Returns whether a file begins like Linux's bzImage, with a header of its boot protocol.
#[must_use]
pub fn is_bzimage(file: &[u8]) -> bool {
    file.get(MAGIC..MAGIC + 4) == Some(b"HdrS")
}

/// Returns the packed kernel in a bzImage.
fn payload(file: &[u8]) -> Result<&[u8]> {
    if !is_bzimage(file) {
        bail!("neither an ELF file nor a Linux kernel (bzImage)");
    }
    let dword = |at: usize| {
        let bytes = file.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes) as usize)
    };
    let sectors = match file[SETUP_SECTORS] {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let found = || {
        let start = (sectors + 1) * SECTOR + dword(PAYLOAD)?;
        file.get(start..start + dword(PAYLOAD + 4)?)
    };
    found().context("the kernel's file ends before its payload does")
}

fn read_all(mut reader: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn unpack_lz4(packed: &[u8]) -> Result<Vec<u8>> {
    read_all(lz4_flex::frame::FrameDecoder::new(packed))
}

fn unpack_zstd(packed: &[u8]) -> Result<Vec<u8>> {
    read_all(ruzstd::decoding::StreamingDecoder::new(packed)?)
}

fn unpack_xz(packed: &[u8]) -> Result<Vec<u8>> {
    read_all(lzma_rust2::XzReader::new(packed, false))
}

/// Unpacks a file of gzip whose header of ten bytes has no optional fields: Linux is packed with `gzip -n`.
fn unpack_gzip(packed: &[u8]) -> Result<Vec<u8>> {
    ensure!(packed.get(3) == Some(&0), "a gzip header with optional fields");
    let body = packed.get(10..).context("a gzip header that is too short")?;
    miniz_oxide::inflate::decompress_to_vec(body).map_err(|error| anyhow::anyhow!("{error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// Returns a bzImage of `sectors` setup sectors with this payload.
    fn bzimage(sectors: u8, payload: &[u8]) -> Vec<u8> {
        let mut file = vec![0; (usize::from(if sectors == 0 { 4 } else { sectors }) + 1) * SECTOR];
        file[SETUP_SECTORS] = sectors;
        file[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        file[PAYLOAD..PAYLOAD + 4].copy_from_slice(&16u32.to_le_bytes());
        file[PAYLOAD + 4..PAYLOAD + 8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        file.extend([0xcc; 16]);
        file.extend(payload);
        file.extend([0xcc; 100]);
        file
    }

    /// Returns the output of a program for these bytes; `None` if the machine lacks the program.
    fn packed(program: &str, arguments: &[&str], bytes: &[u8]) -> Option<Vec<u8>> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().ok()?;
        let mut stdin = child.stdin.take().unwrap();
        let bytes = bytes.to_vec();
        let writer = std::thread::spawn(move || stdin.write_all(&bytes));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        assert!(output.status.success());
        Some(output.stdout)
    }

    fn elf() -> Vec<u8> {
        let numbers = (0..200_000u32).flat_map(|number| (number / 7).to_le_bytes());
        b"\x7fELF".iter().copied().chain(numbers).collect()
    }

    #[test]
    fn takes_the_elf_file_out_of_each_packing() {
        let elf = elf();
        let length = (elf.len() as u32).to_le_bytes();
        for (program, arguments, has_length) in [
            ("lz4", &["-l", "-9", "-c"][..], true),
            ("zstd", &["-19", "-c"], true),
            ("xz", &["--check=crc32", "--x86", "--lzma2=dict=32MiB", "-c"], true),
            ("gzip", &["-n", "-c"], false),
        ] {
            let Some(mut payload) = packed(program, arguments, &elf) else {
                println!("skipped: there is no {program}");
                continue;
            };
            if has_length {
                payload.extend(length);
            }
            for sectors in [0, 1, 39] {
                assert!(vmlinux(bzimage(sectors, &payload)).unwrap() == elf, "{program} {sectors}");
            }
            if has_length {
                let end = payload.len();
                payload[end - 4] ^= 1;
                let error = vmlinux(bzimage(1, &payload)).unwrap_err().to_string();
                assert!(error.contains("instead of"), "{program}: {error}");
            }
        }
    }

    #[test]
    fn an_elf_file_is_taken_as_it_is() {
        assert_eq!(vmlinux(elf()).unwrap(), elf());
    }

    #[test]
    fn refuses_what_is_no_kernel_at_every_length() {
        let whole = bzimage(2, b"BZh91AY");
        for (file, expected) in [
            (&b"#!/bin/sh"[..], "neither an ELF file nor a Linux kernel"),
            (&whole, "packed in a way that is not known: it begins with [42, 5a, 68, 39"),
            (&whole[..whole.len() - 104], "ends before its payload"),
            (&whole[..PAYLOAD + 2], "ends before its payload"),
            (
                &bzimage(1, &[0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3, 4, 0, 0, 0, 0]),
                "cannot unpack the kernel (zstd)",
            ),
        ] {
            let error = vmlinux(file.to_vec()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
