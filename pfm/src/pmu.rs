//! PMUs by libpfm4's names.

use crate::{
    family::{self, CounterBank, Family, Modifier},
    table::{Event, Flags, NotFound, Revision, TableScope, UnitMask},
};
use core::{fmt, ptr};

/// The performance monitoring unit of a processor, as libpfm4 names it.
pub struct Pmu {
    name: &'static str,
    title: &'static str,
    family: &'static Family,
    revision: Revision,
}

impl Pmu {
    /// Returns all PMUs, oldest first.
    #[must_use]
    pub fn all() -> &'static [Self] {
        &PMUS
    }

    /// Finds the PMU of a name. Case is ignored.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Self> {
        PMUS.iter().find(|pmu| pmu.name.eq_ignore_ascii_case(name))
    }

    /// Finds the PMU of a processor by its display family, display model and stepping (CPUID.1:EAX).
    #[must_use]
    pub fn detect(family: u8, model: u8, stepping: u8) -> Option<&'static Self> {
        let (family, revision) = family::detect(family, model, stepping)?;
        // libpfm4 has no name for revision E of family 10h and treats it as revision B.
        let revision = if revision == Revision::E && family.number == 0x10 { Revision::B } else { revision };
        PMUS.iter().find(|pmu| ptr::eq(pmu.family, family) && pmu.revision == revision)
    }

    /// Returns libpfm4's name, such as `amd64_k8_revb`.
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

    /// Returns the modifiers that its events accept, in the order of the canonical string.
    #[must_use]
    pub const fn modifiers(&self) -> &'static [Modifier] {
        self.family.modifiers
    }

    /// Returns its events, in libpfm4's order.
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

    pub(crate) fn find(&self, name: &str) -> Result<&'static Event, NotFound> {
        self.family.table.find(self.scope(), name)
    }

    pub(crate) const fn scope(&self) -> TableScope {
        TableScope { revision: self.revision, without: Flags::PFM3_ONLY }
    }
}

impl fmt::Debug for Pmu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pmu({})", self.name)
    }
}

static PMUS: [Pmu; 21] = [
    pmu("amd64_k7", "AMD K7", &family::K7, Revision::A),
    pmu("amd64_k8_revb", "AMD K8, revision B", &family::K8, Revision::B),
    pmu("amd64_k8_revc", "AMD K8, revision C", &family::K8, Revision::C),
    pmu("amd64_k8_revd", "AMD K8, revision D", &family::K8, Revision::D),
    pmu("amd64_k8_reve", "AMD K8, revision E", &family::K8, Revision::E),
    pmu("amd64_k8_revf", "AMD K8, revision F", &family::K8, Revision::F),
    pmu("amd64_k8_revg", "AMD K8, revision G", &family::K8, Revision::G),
    pmu("amd64_fam10h_barcelona", "AMD family 10h, revision B: Barcelona", &family::FAM10H, Revision::B),
    pmu("amd64_fam10h_shanghai", "AMD family 10h, revision C: Shanghai", &family::FAM10H, Revision::C),
    pmu("amd64_fam10h_istanbul", "AMD family 10h, revision D: Istanbul", &family::FAM10H, Revision::D),
    pmu("amd64_fam11h_turion", "AMD family 11h: Turion X2 Ultra", &family::FAM11H, Revision::A),
    pmu("amd64_fam12h_llano", "AMD family 12h: Llano", &family::FAM12H, Revision::A),
    pmu("amd64_fam14h_bobcat", "AMD family 14h: Bobcat", &family::FAM14H, Revision::A),
    pmu("amd64_fam15h_interlagos", "AMD family 15h", &family::FAM15H, Revision::A),
    pmu("amd64_fam16h", "AMD family 16h", &family::FAM16H, Revision::A),
    pmu("amd64_fam17h_zen1", "AMD family 17h, Zen", &family::ZEN1, Revision::A),
    pmu("amd64_fam17h", "AMD family 17h, Zen: an older name", &family::ZEN1, Revision::A),
    pmu("amd64_fam17h_zen2", "AMD family 17h, Zen 2", &family::ZEN2, Revision::A),
    pmu("amd64_fam19h_zen3", "AMD family 19h, Zen 3", &family::ZEN3, Revision::A),
    pmu("amd64_fam19h_zen4", "AMD family 19h, Zen 4", &family::ZEN4, Revision::A),
    pmu("amd64_fam1ah_zen5", "AMD family 1Ah, Zen 5", &family::ZEN5, Revision::A),
];

const fn pmu(name: &'static str, title: &'static str, family: &'static Family, revision: Revision) -> Pmu {
    Pmu { name, title, family, revision }
}
