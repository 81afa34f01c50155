//! The northbridge of family 10h in PCI configuration space, which selects the LVT entry through which IBS interrupts.
//!
//! Source: BKDG for AMD Family 10h Processors, "Configuration Space", "IO-Space Configuration Address Register", "IBS
//! Control Register" (F3x1CC), "Northbridge Configuration Register 1" (MSRC001_001F).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::AmdProfile;

/// The northbridge that the processors of one node share. If the profile has none, no access is answered.
///
/// It is device 18h of bus 0, with five functions.
#[derive(Debug)]
pub struct Northbridge {
    /// Device ID of the first function.
    id: Option<u16>,
    /// IOCF8.
    address: AtomicU32,
    /// NB_CFG1.
    configuration: AtomicU64,
    /// F3x1CC.
    ibs: AtomicU32,
}

const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;
const VENDOR: u32 = 0x1022;
const DEVICE: u32 = 0x18;
const FUNCTIONS: u32 = 5;
/// Class code: a host bridge.
const CLASS: u32 = 0x0600_0000;
/// Header type: one of several functions.
const HEADER: u32 = 0x0080_0000;
const IBS_FUNCTION: u32 = 3;
const IBS_CONTROL: u32 = 0x1cc;
/// LvtOffset, LvtOffsetVal.
const IBS_WRITABLE: u32 = 0xf | 1 << 8;

/// IOCF8: ConfigEn.
const CONFIG_EN: u32 = 1 << 31;
/// NB_CFG1: EnableCf8ExtCfg.
const ENABLE_CF8_EXT_CFG: u64 = 1 << 46;

impl Northbridge {
    /// Returns the northbridge of a machine without one, which answers no access.
    pub const fn absent() -> Self {
        Self {
            id: None,
            address: AtomicU32::new(0),
            configuration: AtomicU64::new(0),
            ibs: AtomicU32::new(0),
        }
    }

    /// Returns true if the northbridge answers accesses.
    pub const fn is_present(&self) -> bool {
        self.id.is_some()
    }

    /// Returns the northbridge after reset. Firmware did not write F3x1CC, as on most boards of the time.
    pub const fn new(profile: &AmdProfile) -> Self {
        Self { id: profile.northbridge, ..Self::absent() }
    }

    /// Executes OUT of `bytes` bytes to a configuration port. Returns `false` if the access is not for this device
    /// alone, so that others must see it too. A write of the address is recorded, but always concerns other devices as
    /// well.
    pub fn port_write(&self, port: u16, bytes: u32, value: u32) -> bool {
        if port == ADDRESS_PORT && bytes == 4 {
            self.address.store(value, Relaxed);
            return false;
        }
        let Some((function, register)) = self.target(port) else { return false };
        if function == IBS_FUNCTION && register == IBS_CONTROL {
            let shift = 8 * u32::from(port & 3);
            let mask = width_mask(bytes) << shift;
            let old = self.ibs.load(Relaxed);
            self.ibs.store((old & !mask | value << shift & mask) & IBS_WRITABLE, Relaxed);
        }
        true
    }

    /// Executes IN of `bytes` bytes from a configuration port. Returns `None` if the access is not for this device.
    pub fn port_read(&self, port: u16, bytes: u32) -> Option<u32> {
        let (function, register) = self.target(port)?;
        let whole = match register {
            0 => (u32::from(self.id?) + function) << 16 | VENDOR,
            8 => CLASS,
            0xc => HEADER,
            IBS_CONTROL if function == IBS_FUNCTION => self.ibs.load(Relaxed),
            _ => 0,
        };
        Some(whole >> (8 * u32::from(port & 3)) & width_mask(bytes))
    }

    /// Returns the function and register that an access to `port` addresses, if they are this device's.
    fn target(&self, port: u16) -> Option<(u32, u32)> {
        self.id?;
        let address = self.address.load(Relaxed);
        let bus_and_device = address >> 11 & 0x1fff;
        let function = address >> 8 & 7;
        if port & !3 != DATA_PORT
            || address & CONFIG_EN == 0
            || bus_and_device != DEVICE
            || function >= FUNCTIONS
        {
            return None;
        }
        // ExtRegNo is reserved unless it is enabled.
        let extended = self.configuration.load(Relaxed) & ENABLE_CF8_EXT_CFG != 0;
        let high = if extended { address >> 24 & 0xf } else { 0 };
        Some((function, high << 8 | address & 0xfc))
    }

    /// Returns NB_CFG1; `None` if there is no such MSR.
    pub(super) fn configuration(&self) -> Option<u64> {
        self.id.map(|_| self.configuration.load(Relaxed))
    }

    pub(super) fn set_configuration(&self, value: u64) {
        self.configuration.store(value, Relaxed);
    }

    /// Returns the value of F3x1CC that IBS_CTL shows; `None` if there is no such register.
    pub(super) fn ibs_control(&self) -> Option<u64> {
        self.id.map(|_| self.ibs.load(Relaxed).into())
    }
}

const fn width_mask(bytes: u32) -> u32 {
    match bytes {
        1 => 0xff,
        2 => 0xffff,
        _ => 0xffff_ffff,
    }
}
