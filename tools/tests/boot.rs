//! `pugmark boot`, with the program of a boot sector as the guest.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use pugmark_harness::{images::build_monitor, scratch::Scratch, truth::hash};
use std::{
    arch::global_asm,
    fs,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Output, Stdio},
};

// It prints a line, waits for a key and sends it back, traces a loop, and ends as the key says: `x` writes 17 to port
// F4H, every other key leaves it running.
global_asm!(
    r#"
    .section .rodata.boot_sector, "a", @progbits
    .code16
    .global boot_sector, boot_sector_trace, boot_sector_loop, boot_sector_end
boot_sector:
    cli
    mov dx, 0x3f8
    mov al, 'k'
    out dx, al
    mov al, '?'
    out dx, al
    mov al, 10
    out dx, al
1:  mov dx, 0x3fd
    in al, dx
    test al, 1
    jz 1b
    mov dx, 0x3f8
    in al, dx
    out dx, al
    mov bl, al
    mov al, 10
    out dx, al
    mov ecx, 0x560
    mov eax, 0x20000
    xor edx, edx
    wrmsr
    inc ecx
    mov eax, 0xffff
    wrmsr
    mov ecx, 0x570
    mov eax, 0x200d
    wrmsr
boot_sector_trace:
    mov cx, 100
boot_sector_loop:
    loop boot_sector_loop
    mov ecx, 0x570
    xor eax, eax
    wrmsr
boot_sector_end:
    cmp bl, 'x'
2:  jne 2b
    mov al, 17
    out 0xf4, al
    hlt
    .org boot_sector + 510
    .word 0xaa55
    .code64
    "#
);

unsafe extern "C" {
    static boot_sector: [u8; 512];
    static boot_sector_trace: u8;
    static boot_sector_loop: u8;
    static boot_sector_end: u8;
}

fn pugmark(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
    command.arg("boot").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts the guest in this folder, waits for its question and answers it.
fn answered(
    scratch: &Scratch,
    key: &str,
    arguments: &[&str],
) -> (Child, BufReader<std::process::ChildStdout>) {
    let disk = scratch.file("disk");
    // SAFETY: the assembly has 512 bytes there, and nothing writes them.
    fs::write(&disk, unsafe { boot_sector }).unwrap();
    let first = ["--disk", disk.to_str().unwrap(), "--timeout", "60"];
    let mut command = pugmark(&[&first[..], arguments].concat());
    let mut child = command.env("PUGMARK_MONITOR", build_monitor().unwrap()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    // The output comes while the guest runs, or the test would wait here.
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert!(line.ends_with("k?\n"), "{line:?}");
    child.stdin.as_mut().unwrap().write_all(key.as_bytes()).unwrap();
    line.clear();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, format!("{key}\n"));
    (child, output)
}

fn ended(child: Child, mut output: BufReader<std::process::ChildStdout>) -> Output {
    let mut rest = vec![];
    output.read_to_end(&mut rest).unwrap();
    child.wait_with_output().unwrap()
}

/// Returns the addresses that the guest executes while it traces.
fn traced() -> Vec<u64> {
    let start = &raw const boot_sector as u64;
    let labels = [&raw const boot_sector_trace, &raw const boot_sector_loop, &raw const boot_sector_end];
    let [trace, repeated, end] = labels.map(|label| label as u64 - start + 0x7c00);
    // MOV; LOOP of two bytes; MOV of six and XOR of three. The WRMSR of two that follows ends the trace before it
    // retires.
    let last = [end - 11, end - 5];
    [trace].into_iter().chain([repeated; 100]).chain(last).collect()
}

#[test]
fn a_disk_boots_with_its_serial_port_live_and_the_truth_at_the_end() {
    let scratch = Scratch::new().unwrap();
    let (child, output) = answered(&scratch, "x", &[]);
    let ended = ended(child, output);
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(35), "{said}");
    let (count, hash) = (traced().len(), hash(&traced()));
    let expected = format!("truth: processor 0, level 0: {count} instructions, hash {hash:#018x}\n");
    assert!(said.contains(&expected), "{said}{expected}");
}

#[test]
fn a_signal_ends_the_machine_and_the_truth_is_whole() {
    let scratch = Scratch::new().unwrap();
    let file = scratch.file("truth");
    let (child, output) = answered(&scratch, "y", &["--truth", file.to_str().unwrap()]);
    // The guest traces within a moment after its last line.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let ended = ended(child, output);
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(130), "{said}");
    let text = fs::read_to_string(file).unwrap();
    let addresses = text.lines().map(|line| line.rsplit_once(" 0x").unwrap().1);
    let addresses: Vec<u64> = addresses.map(|digits| u64::from_str_radix(digits, 16).unwrap()).collect();
    assert_eq!(addresses, traced());
}

/// Returns the addresses that a recording's first processor executed from the guest's first trace of its own on.
fn recorded(folder: &std::path::Path) -> Vec<u64> {
    let pugmark = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
        let output = command.args(arguments).arg(folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    pugmark(&["decode", "--check"]);
    let text = pugmark(&["script", "-F", "ip"]);
    let ips =
        text.lines().filter_map(|line| u64::from_str_radix(line.trim().trim_start_matches("0x"), 16).ok());
    let first = traced()[0];
    ips.skip_while(|ip| *ip != first).collect()
}

#[test]
fn a_machine_is_recorded_without_the_monitor_to_its_end_or_a_signal() {
    let scratch = Scratch::new().unwrap();
    for (key, status) in [("x", 35), ("y", 130)] {
        let folder = scratch.file(key);
        // The BIOS takes as long as it takes; its code is not wanted.
        let options = ["--record", folder.to_str().unwrap(), "--start", "0x7c00"];
        let (child, output) = answered(&scratch, key, &options);
        if status == 130 {
            std::thread::sleep(std::time::Duration::from_secs(1));
            let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
            assert!(kill.success());
        }
        let ended = ended(child, output);
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(status), "{said}");
        assert!(said.contains("instructions, hash 0x") && !said.contains("truth"), "{said}");
        // Unlike the guest's own trace, this one does not end with the guest's WRMSR.
        assert!(recorded(&folder).starts_with(&traced()), "{key}: {said}");
    }
}

#[test]
fn a_medium_that_no_firmware_starts_is_said() {
    let scratch = Scratch::new().unwrap();
    let file = scratch.file("no,iso");
    fs::write(&file, "neither a disk nor a CD").unwrap();
    for (option, why) in
        [("--cdrom", "no boot record (El Torito)"), ("--disk", "first sector does not end with")]
    {
        let mut command = pugmark(&[option, file.to_str().unwrap(), "--timeout", "1"]);
        let ended = command.env("PUGMARK_MONITOR", build_monitor().unwrap()).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(124), "{said}");
        assert!(said.contains("no,iso: no firmware starts it: ") && said.contains(why), "{said}");
    }
}

#[test]
fn a_machine_runs_where_shared_memory_is_as_small_as_in_a_container() {
    // The new file system hides what is in the old one. The disk ends the machine at once.
    let disk = std::env::temp_dir().join(format!("pugmark-small-{}", std::process::id()));
    let mut sector = [0; 512];
    sector[..4].copy_from_slice(&[0xb0, 17, 0xe6, 0xf4]);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    fs::write(&disk, sector).unwrap();
    let script = "mount -t tmpfs -o size=1m none /dev/shm && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_pugmark"), "boot", "--disk"]);
    command.arg(&disk).env("PUGMARK_MONITOR", build_monitor().unwrap()).stdin(Stdio::null());
    let ended = command.output().unwrap();
    fs::remove_file(&disk).unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    if said.contains("unshare") || said.contains("mount:") {
        return println!("skipped: no file system can be mounted: {said}");
    }
    assert_eq!(ended.status.code(), Some(35), "{said}");
}

#[test]
fn what_is_missing_is_named_with_its_package() {
    let scratch = Scratch::new().unwrap();
    let disk = scratch.file("disk");
    fs::write(&disk, "").unwrap();
    let disk = disk.to_str().unwrap();
    let image = std::env::current_exe().unwrap();
    for (monitor, path, message) in [
        (image.to_str().unwrap(), "", "Debian's package qemu-system-x86 has it"),
        ("/no/monitor", "", "the monitor, which runs below the guest, is missing: no file `/no/monitor`"),
    ] {
        let mut command = pugmark(&["--disk", disk]);
        let ended = command.env("PUGMARK_MONITOR", monitor).env("PATH", path).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(125), "{said}");
        assert!(said.contains(message), "{said}");
    }
}

#[test]
fn a_guest_has_one_medium_and_only_a_kernel_has_a_command_line() {
    for (words, message) in [
        ("", "required arguments were not provided"),
        ("--disk d --cdrom c", "cannot be used with"),
        ("--disk d --kernel k", "cannot be used with"),
        ("--disk d --initrd i", "cannot be used with"),
        ("--kernel k --uefi", "cannot be used with"),
        ("--cdrom d --append a", "cannot be used with"),
        ("--initrd i", "required arguments were not provided"),
        ("--disk d --record r --truth t", "cannot be used with"),
        ("--disk d --start f", "required arguments were not provided"),
        ("--disk d --out o", "cannot be used with"),
        ("--disk d --processors 0", "0 is not in 1..=65535"),
        ("--disk d -snapshot", "unexpected argument"),
    ] {
        let ended = pugmark(&words.split_whitespace().collect::<Vec<_>>()).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        // No status of the guest's.
        assert_eq!(ended.status.code(), Some(125), "{words}: {said}");
        assert!(said.contains(message), "{words}: {said}");
    }
}
