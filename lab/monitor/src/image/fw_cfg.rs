//! The firmware configuration device of the machine below, and the guest's access to it.

use core::sync::atomic::{AtomicU8, Ordering};

use spin::Mutex;
use x86_64::instructions::port::Port;

use pugmark_monitor::fw_cfg::{FwCfg, FwCfgDevice};
use pugmark_monitor::guest_map::GuestRam;

use crate::image::vcpu::Vcpu;

/// The device as the guest sees it; all its processors share it. `None` if the machine has none.
static DEVICE: Mutex<Option<FwCfg>> = Mutex::new(None);

/// Looks for the device, and returns whether there is one. Must be called before the guest runs.
pub(crate) fn find(ram: GuestRam) -> bool {
    let mut device = DEVICE.lock();
    *device = FwCfg::new(&mut Below, ram);
    device.is_some()
}

impl Vcpu {
    /// Reads `bytes` bytes from one of the device's ports.
    pub(crate) fn read_fw_cfg(&self, port: u16, bytes: u32) -> u32 {
        DEVICE.lock().as_mut().map_or(u32::MAX, |device| device.read(&mut Below, port, bytes))
    }

    /// Writes to one of the device's ports.
    pub(crate) fn write_fw_cfg(&mut self, port: u16, bytes: u32, value: u32) {
        let written = match DEVICE.lock().as_mut() {
            Some(device) => device.write(&mut Below, &mut self.memory, port, bytes, value),
            None => Ok(()),
        };
        if let Err(missing) = written {
            self.report_missing(missing.0, "by DMA of fw_cfg");
        }
    }
}

/// The device of the machine below.
struct Below;

/// A DMA request to the device. All of it is big-endian.
#[repr(C, align(16))]
struct DmaRequest([AtomicU8; 16]);

/// The only request at any time: it is made under [`DEVICE`]'s lock.
static REQUEST: DmaRequest = DmaRequest([const { AtomicU8::new(0) }; 16]);

impl FwCfgDevice for Below {
    fn select(&mut self, key: u16) {
        // SAFETY: the port belongs to the device, and selecting an item touches no memory.
        unsafe { Port::new(0x510).write(key) };
    }

    fn read(&mut self) -> u8 {
        // SAFETY: as above, for a read of the selected item.
        unsafe { Port::new(0x511).read() }
    }

    fn request(&mut self, control: u32, bytes: u32, address: u64) -> u32 {
        const ERROR: u8 = 1;
        let [control, bytes] = [control, bytes].map(u32::to_be_bytes);
        let request = control.into_iter().chain(bytes).chain(address.to_be_bytes());
        REQUEST.0.iter().zip(request).for_each(|(to, byte)| to.store(byte, Ordering::SeqCst));
        let at = &raw const REQUEST as u64;
        // SAFETY: the high half of an address alone starts nothing.
        unsafe { Port::new(0x514).write(((at >> 32) as u32).swap_bytes()) };
        // SAFETY: the request that starts here is in memory of the monitor's own. The caller has limited its reads and
        // writes to the guest's memory.
        unsafe { Port::new(0x518).write((at as u32).swap_bytes()) };
        loop {
            let left = [0, 1, 2, 3].map(|index: usize| REQUEST.0[index].load(Ordering::SeqCst));
            if left[..3] == [0; 3] && left[3] & !ERROR == 0 {
                return u32::from_be_bytes(left);
            }
            core::hint::spin_loop();
        }
    }
}
