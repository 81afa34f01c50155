//! The memory that is reported to a kernel, and accesses outside of it.

use core::arch::asm;

use crate::{check, mark, tag};

unsafe extern "C" {
    safe fn call_into(address: u64) -> u64;
    safe fn read_at(address: u64) -> u64;
    safe fn push_to(stack: u64) -> u64;
    safe static level3: [u64; 512];
}

/// The end of the RAM below the monitor, by default.
const RAM_END: u64 = 256 << 20;
const MIB: u64 = 1 << 20;

/// Keys of fw_cfg.
const SIGNATURE: u16 = 0;
const RAM_SIZE: u16 = 3;
const DIRECTORY: u16 = 0x19;

/// Checks that the boot loader's map, fw_cfg, the real-time clock's memory and the others report the same RAM.
pub fn map(information: u32) -> Result<(), &'static str> {
    let loaders = tag(information, 6).ok_or("no memory map from the boot loader")?;
    check(
        ram(loaders[8..].chunks_exact(24).map(entry)) == Ok(RAM_END),
        "the boot loader's map has other RAM",
    )?;
    let (key, size) = e820()?;
    let mut map = [0; 1024];
    let map = map.get_mut(..size).ok_or("the map is too large")?;
    select(key);
    map.fill_with(|| read_byte(0x511));
    check(ram(map.chunks_exact(20).map(entry)) == Ok(RAM_END), "fw_cfg's map has other RAM")?;
    let mut again = [0; 1024];
    let again = &mut again[..size];
    select(key);
    // SAFETY: the buffer is as long as the data.
    unsafe { asm!("rep insb", in("dx") 0x511, inout("rdi") again.as_mut_ptr() => _, inout("rcx") size => _) };
    check(map == again, "REP INSB reads something else")?;
    select(RAM_SIZE);
    let ram_size = (0..8).fold(0, |size, index| size | u64::from(read_byte(0x511)) << (8 * index));
    check(ram_size == RAM_END, "fw_cfg says another size")?;
    let cmos = |index: u8| {
        write_byte(0x70, index);
        read_byte(0x71)
    };
    let word = |low: u8| u64::from(cmos(low)) | u64::from(cmos(low + 1)) << 8;
    check(word(0x34) << 16 == RAM_END - 16 * MIB, "the clock's memory says another size")?;
    check(word(0x5b) == 0 && cmos(0x5d) == 0, "the clock's memory has RAM above 4 GiB")?;
    check(vmware_ram() == 0, "VMware's port answers")
}

fn entry(bytes: &[u8]) -> (u64, u64, u8) {
    let long = |bytes: &[u8]| bytes.iter().rev().fold(0, |long, byte| long << 8 | u64::from(*byte));
    (long(&bytes[..8]), long(&bytes[8..16]), bytes[16])
}

/// Returns the end of the RAM in a map.
fn ram(map: impl Iterator<Item = (u64, u64, u8)>) -> Result<u64, &'static str> {
    let mut end = 0;
    for (start, bytes, kind) in map {
        check(start >= end || kind != 1, "ranges of RAM out of order")?;
        end = if kind == 1 { start + bytes } else { end };
    }
    Ok(end)
}

/// Returns the key and the size of the firmware's memory map.
fn e820() -> Result<(u16, usize), &'static str> {
    select(SIGNATURE);
    check([(); 4].map(|()| read_byte(0x511)) == *b"QEMU", "no fw_cfg")?;
    select(DIRECTORY);
    let count = u32::from_be_bytes([(); 4].map(|()| read_byte(0x511)));
    for _ in 0..count {
        let file = [(); 64].map(|()| read_byte(0x511));
        if file[8..].starts_with(b"etc/e820\0") {
            let size = u32::from_be_bytes([file[0], file[1], file[2], file[3]]);
            return Ok((u16::from_be_bytes([file[4], file[5]]), size as usize));
        }
    }
    Err("fw_cfg has no memory map")
}

/// Checks that DMA reaches the kernel's own memory, and nothing else.
pub fn dma() -> Result<(), &'static str> {
    const READ: u32 = 1 << 1 | 1 << 3;
    const ERROR: u32 = 1;
    let signature = u32::from(SIGNATURE) << 16 | READ;
    let mut buffer = [0xaa_u8; 8];
    let own = &raw mut buffer as u64;
    check(request(signature, 4, own) == 0, "DMA into the kernel's own memory fails")?;
    // SAFETY: the buffer is there.
    let found = unsafe { (&raw const buffer).read_volatile() };
    check(found == *b"QEMU\xaa\xaa\xaa\xaa", "DMA has brought something else")?;
    let (key, size) = e820()?;
    let key = u32::from(key) << 16;
    // The monitor's first bytes, its heap, its log, the end of its RAM, an address that no machine has.
    for target in [RAM_END, RAM_END + 0x20_0000, 320 * MIB, 480 * MIB, 1 << 40] {
        for (control, bytes) in [(signature, 4), (key | READ, size as u32), (signature, 0x10_0000)] {
            check(request(control, bytes, target) == ERROR, "DMA into the monitor succeeds")?;
        }
    }
    check(request(signature, 8, RAM_END - 4) == ERROR, "DMA over the end of RAM succeeds")
}

/// Makes a DMA request of fw_cfg, and returns the control word that it leaves.
fn request(control: u32, bytes: u32, target: u64) -> u32 {
    let mut request = [0; 16];
    request[..4].copy_from_slice(&control.to_be_bytes());
    request[4..8].copy_from_slice(&bytes.to_be_bytes());
    request[8..].copy_from_slice(&target.to_be_bytes());
    let at = &raw mut request as u64;
    write_long(0x514, ((at >> 32) as u32).swap_bytes());
    write_long(0x518, (at as u32).swap_bytes());
    // SAFETY: the request is still there.
    u32::from_be_bytes(unsafe { (at as *const [u8; 4]).read_volatile() })
}

/// Checks that code, page tables and a stack at addresses without memory read as ones.
pub fn no_memory(session: u32) -> Result<(), &'static str> {
    const INVALID_OPCODE: u64 = 6;
    const PAGE_FAULT: u64 = 14;
    /// Of the error code; QEMU's own walk does not set the bit for a present page.
    const RESERVED_BIT: u64 = 8;
    const HOLE: u64 = 0x1800_0000;
    mark(session);
    let fetched = call_into(HOLE + 0x1000);
    // The third GiB of linear memory.
    let entry = (&raw const level3).cast::<u64>().wrapping_add(2).cast_mut();
    // SAFETY: nothing of this kernel's is in that GiB.
    unsafe { entry.write_volatile((HOLE + 0x2000) | 3) };
    let walked = read_at(2 << 30);
    // SAFETY: as above.
    unsafe { entry.write_volatile(0) };
    let pushed = push_to(HOLE + 0x3f80);
    mark(0);
    check(fetched == INVALID_OPCODE, "what is fetched where no memory is does not raise #UD")?;
    let reserved = walked as u8 == PAGE_FAULT as u8 && walked >> 8 & RESERVED_BIT != 0;
    check(reserved, "a table where no memory is has no reserved bits")?;
    check(pushed == u64::MAX, "a stack where no memory is keeps something")
}

/// Checks the monitor's port, which is not this kernel's: writes are lost, and reads return nothing.
pub fn ports() -> Result<(), &'static str> {
    const MONITOR: u16 = 0xe8;
    const TEXT: &[u8] = b"\nmonitor: violation processor=0 pmis_dropped=1\n";
    TEXT.iter().for_each(|byte| write_byte(MONITOR, *byte));
    // SAFETY: sends bytes that are there to a port without a device.
    unsafe {
        asm!("rep outsb", in("dx") MONITOR, inout("rsi") TEXT.as_ptr() => _, inout("rcx") TEXT.len() => _)
    };
    check(read_byte(MONITOR) == 0xff, "a device answers at the monitor's port")?;
    // The upper byte is for the debug console beside it, where the host expects trace bytes.
    // SAFETY: no memory is touched.
    unsafe { asm!("out dx, ax", in("dx") MONITOR, in("ax") 0x440a_u16, options(nomem, nostack)) };
    let both: u16;
    // SAFETY: as above.
    unsafe { asm!("in ax, dx", in("dx") MONITOR, out("ax") both, options(nomem, nostack)) };
    check(both == 0xe9ff, "the debug console does not answer beside the monitor's port")
}

/// Returns the RAM size by VMware's interface; 0 if nothing answers.
fn vmware_ram() -> u32 {
    let (answer, mib): (u32, u32);
    // SAFETY: the interface changes only general registers. RBX is exchanged, because the compiler keeps it.
    unsafe {
        asm!(
            "xchg {mib:r}, rbx", "in eax, dx", "xchg {mib:r}, rbx",
            mib = inout(reg) 0_u32 => mib, inout("eax") 0x564d_5868_u32 => answer, inout("ecx") 0x14 => _,
            inout("edx") 0x5658 => _, out("rsi") _, out("rdi") _, options(nomem, nostack)
        );
    }
    if answer == u32::MAX && mib == 0 { 0 } else { answer }
}

fn select(key: u16) {
    // SAFETY: selects an item; no memory is touched.
    unsafe { asm!("out dx, ax", in("dx") 0x510_u16, in("ax") key, options(nomem, nostack)) };
}

pub(crate) fn read_byte(port: u16) -> u8 {
    let byte: u8;
    // SAFETY: reads a port; no memory is touched.
    unsafe { asm!("in al, dx", in("dx") port, out("al") byte, options(nomem, nostack)) };
    byte
}

pub(crate) fn write_byte(port: u16, byte: u8) {
    // SAFETY: writes to a port; no memory is touched.
    unsafe { asm!("out dx, al", in("dx") port, in("al") byte, options(nomem, nostack)) };
}

fn write_long(port: u16, value: u32) {
    // SAFETY: if the device accesses memory because of this, the caller has made it the kernel's own or none.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack)) };
}
