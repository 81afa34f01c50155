//! Processors by libpfm3's revisions, and later processors that are programmed in the same way.

use crate::{
    family::{self, CounterBank, Family},
    table::{Event, Flags, NotFound, Revision, TableScope, UnitMask},
};
use core::{fmt, ptr};

/// A processor revision that libpfm3 programs, or a later processor with the same kind of registers, which libpfm3 does
/// not know: families 12h, 14h, and 16h and later.
pub struct Cpu {
    name: &'static str,
    title: &'static str,
    family: &'static Family,
    revision: Revision,
}

impl Cpu {
    /// Returns all processors, oldest first.
    #[must_use]
    pub fn all() -> &'static [Self] {
        &CPUS
    }

    /// Finds the processor of a name such as `k8_revf`. Case is ignored.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Self> {
        CPUS.iter().find(|cpu| cpu.name.eq_ignore_ascii_case(name))
    }

    /// Finds the processor by its display family, display model and stepping (CPUID.1:EAX).
    #[must_use]
    pub fn detect(family: u8, model: u8, stepping: u8) -> Option<&'static Self> {
        let (family, revision) = family::detect(family, model, stepping)?;
        CPUS.iter().find(|cpu| ptr::eq(cpu.family, family) && cpu.revision == revision)
    }

    /// Returns its name: family and revision.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns a description of the processor.
    #[must_use]
    pub const fn title(&self) -> &'static str {
        self.title
    }

    /// Returns its counters and their registers.
    #[must_use]
    pub const fn bank(&self) -> CounterBank {
        self.family.bank
    }

    /// Returns its events.
    pub fn events(&self) -> impl Iterator<Item = &'static Event> + use<> {
        self.family.table.events(self.scope())
    }

    /// Finds the event of a name. Case is ignored.
    #[must_use]
    pub fn event(&self, name: &str) -> Option<&'static Event> {
        self.find(name).ok()
    }

    /// Returns the unit masks of one of its events.
    pub fn unit_masks(&self, event: &Event) -> impl Iterator<Item = &'static UnitMask> + use<> {
        self.scope().masks(event).map(|(_, mask)| mask)
    }

    /// Returns true if the event select has twelve bits, counters distinguish guest and host, and there is IBS: since
    /// family 10h.
    pub(crate) const fn is_extended(&self) -> bool {
        self.family.number >= 0x10
    }

    /// Returns true if IBS can count dispatched ops: since revision C of family 10h.
    pub(crate) fn counts_ops(&self) -> bool {
        self.family.number > 0x10 || self.family.number == 0x10 && self.revision >= Revision::C
    }

    pub(crate) fn find(&self, name: &str) -> Result<&'static Event, NotFound> {
        self.family.table.find(self.scope(), name)
    }

    pub(crate) const fn scope(&self) -> TableScope {
        TableScope { revision: self.revision, without: Flags::PFM4_ONLY }
    }
}

impl PartialEq for Cpu {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Cpu {}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cpu({})", self.name)
    }
}

static CPUS: [Cpu; 20] = [
    cpu("k7", "AMD K7", &family::K7, Revision::A),
    cpu("k8_revb", "AMD K8, revision B", &family::K8, Revision::B),
    cpu("k8_revc", "AMD K8, revision C", &family::K8, Revision::C),
    cpu("k8_revd", "AMD K8, revision D", &family::K8, Revision::D),
    cpu("k8_reve", "AMD K8, revision E", &family::K8, Revision::E),
    cpu("k8_revf", "AMD K8, revision F", &family::K8, Revision::F),
    cpu("k8_revg", "AMD K8, revision G", &family::K8, Revision::G),
    cpu("fam10h_revb", "AMD family 10h, revision B: Barcelona", &family::FAM10H, Revision::B),
    cpu("fam10h_revc", "AMD family 10h, revision C: Shanghai", &family::FAM10H, Revision::C),
    cpu("fam10h_revd", "AMD family 10h, revision D: Istanbul", &family::FAM10H, Revision::D),
    cpu("fam10h_reve", "AMD family 10h, revision E", &family::FAM10H, Revision::E),
    cpu("fam12h", "AMD family 12h: Llano", &family::FAM12H, Revision::A),
    cpu("fam14h", "AMD family 14h: Bobcat", &family::FAM14H, Revision::A),
    cpu("fam15h", "AMD family 15h", &family::FAM15H, Revision::A),
    cpu("fam16h", "AMD family 16h", &family::FAM16H, Revision::A),
    cpu("fam17h_zen1", "AMD family 17h, Zen", &family::ZEN1, Revision::A),
    cpu("fam17h_zen2", "AMD family 17h, Zen 2", &family::ZEN2, Revision::A),
    cpu("fam19h_zen3", "AMD family 19h, Zen 3", &family::ZEN3, Revision::A),
    cpu("fam19h_zen4", "AMD family 19h, Zen 4", &family::ZEN4, Revision::A),
    cpu("fam1ah_zen5", "AMD family 1Ah, Zen 5", &family::ZEN5, Revision::A),
];

const fn cpu(name: &'static str, title: &'static str, family: &'static Family, revision: Revision) -> Cpu {
    Cpu { name, title, family, revision }
}
