//! Family 10h: the northbridge register that selects the entry of the local vector table for IBS.

use x86_64::instructions::port::Port;

/// Access to the configuration space of the nodes' northbridges, function 3.
///
/// # Safety
///
/// An implementation must access the register of device `18h + node`, function 3, on bus 0, and nothing else.
pub unsafe trait Northbridge {
    /// Reads the register at `offset`, below 4096; all ones if the device does not exist.
    fn read(&mut self, node: u8, offset: u16) -> u32;

    /// Writes the register at `offset`.
    fn write(&mut self, node: u8, offset: u16, value: u32);
}

/// Vendor and device of the northbridge of family 10h, function 3.
const FAM10H: u32 = 0x1203_1022;
/// IBS Control Register: bits 3:0 are the entry; bit 8 marks them as valid.
///
/// Source: BKDG 31116, "F3x1CC IBS Control Register".
const IBS_CONTROL: u16 = 0x1cc;
const NODES: u8 = 8;

/// Selects `entry` for IBS on all nodes; returns the number of nodes.
pub(super) fn assign(northbridge: &mut dyn Northbridge, entry: u8) -> u8 {
    let mut nodes = 0;
    for node in 0..NODES {
        if northbridge.read(node, 0) == FAM10H {
            northbridge.write(node, IBS_CONTROL, u32::from(entry) | 1 << 8);
            nodes += 1;
        }
    }
    nodes
}

/// Access through the ports `CF8` and `CFC`, with bits 11:8 of the register in bits 27:24 of the address, which
/// EnableCf8ExtCfg in NB_CFG (`C001_001F[46]`) allows.
///
/// Source: BKDG 31116, "IO-Space Configuration".
#[derive(Debug)]
pub struct ConfigPorts(());

impl ConfigPorts {
    /// Returns access through the ports.
    ///
    /// # Safety
    ///
    /// The caller runs at CPL 0 on a machine with these ports, nothing else uses them meanwhile, and EnableCf8ExtCfg is
    /// set.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(())
    }

    fn select(node: u8, offset: u16) -> Port<u32> {
        // SAFETY: the caller of `new` promised that nothing else uses the ports.
        unsafe { Port::new(0xcf8).write(address(node, offset)) };
        Port::new(0xcfc)
    }
}

const fn address(node: u8, offset: u16) -> u32 {
    let offset = offset as u32;
    1 << 31 | (offset & 0xf00) << 16 | (0x18 + node as u32) << 11 | 3 << 8 | offset & 0xfc
}

// SAFETY: the address is that of the device and function that the trait requires.
unsafe impl Northbridge for ConfigPorts {
    fn read(&mut self, node: u8, offset: u16) -> u32 {
        let mut data = Self::select(node, offset);
        // SAFETY: the data port; reading configuration space changes nothing.
        unsafe { data.read() }
    }

    fn write(&mut self, node: u8, offset: u16, value: u32) {
        let mut data = Self::select(node, offset);
        // SAFETY: the caller asked to write this register.
        unsafe { data.write(value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extended_register_has_its_high_bits_above_the_bus() {
        // Bits 31 enable, 27:24 register[11:8], 23:16 bus, 15:11 device, 10:8 function, 7:2 register.
        for (node, offset, expected) in
            [(0, 0, 0x8000_c300), (0, 0x1cc, 0x8100_c3cc), (7, 0x1cc, 0x8100_fbcc)]
        {
            assert_eq!(address(node, offset), expected);
        }
    }

    #[test]
    fn every_node_that_is_there_gets_the_entry_and_is_counted() {
        use crate::amd::fake::{BARCELONA, Machine};
        for nodes in 0..=NODES {
            let machine = Machine::new(BARCELONA);
            machine.set_nodes(&vec![0; nodes.into()]);
            assert_eq!(assign(&mut machine.clone(), 3), nodes);
            assert_eq!(machine.nodes(), vec![0x103; nodes.into()]);
        }
    }
}
