//! Compares every event with libpfm4, if that is installed (Debian: `libpfm4`).

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use pugmark_pfm::{Levels, Pmu, encode};
use std::{
    env,
    ffi::{CStr, CString, c_char, c_int},
    ptr,
    sync::{Mutex, OnceLock},
};

/// libpfm 4.13, which added Zen 4, changed the tables of the families from 17h on; Zen 5 came later. Each PMU here
/// needs a libpfm that has the second one.
const SINCE: [(&str, &str); 6] = [
    ("amd64_fam17h", "amd64_fam19h_zen4"),
    ("amd64_fam17h_zen1", "amd64_fam19h_zen4"),
    ("amd64_fam17h_zen2", "amd64_fam19h_zen4"),
    ("amd64_fam19h_zen3", "amd64_fam19h_zen4"),
    ("amd64_fam19h_zen4", "amd64_fam19h_zen4"),
    ("amd64_fam1ah_zen5", "amd64_fam1ah_zen5"),
];

/// Two events of Zen 5 whose codes some versions of libpfm have exchanged, among them Debian 13's 4.13.0+git99: each
/// then has a code whose unit masks are the other's. The events' codes in this crate, and in those versions.
const EXCHANGED: [(&str, u64, u64); 2] = [
    ("amd64_fam1ah_zen5::L2_FILL_RESPONSE_SRC", 0x72, 0x165),
    ("amd64_fam1ah_zen5::L2_PREFETCH_MISS_L3", 0x165, 0x72),
];

/// The attributes to test besides unit masks.
const MODIFIERS: [&str; 30] = [
    "k",
    "u",
    "e",
    "i",
    "c",
    "h",
    "g",
    "k=0",
    "U=y",
    "e=T",
    "i=f",
    "g=1",
    "h=n",
    "u=2",
    "u=",
    "c=1",
    "c=0x3",
    "c=010",
    "c=255",
    "c=256",
    "c=-1",
    "c=99999999999999999999",
    "c=08",
    "0x0",
    "0X5f",
    "0xff",
    "0x100",
    "0xg",
    "zzz",
    "",
];

#[test]
fn every_event_encodes_as_in_libpfm4() {
    let Some(libpfm) = Libpfm::get() else {
        eprintln!("skipped: libpfm4 is not installed");
        return;
    };
    let mut requests = 0;
    for pmu in Pmu::all() {
        let since = SINCE.iter().find(|(name, _)| *name == pmu.name());
        if since.is_some_and(|(_, since)| !libpfm.has(since)) {
            eprintln!("skipped: libpfm4 is too old for {}", pmu.name());
            continue;
        }
        for event in pmu.events() {
            let name = format!("{}::{}", pmu.name(), event.name());
            let masks: Vec<&str> = pmu.unit_masks(event).map(|mask| mask.name()).collect();
            let mut endings = vec![String::new()];
            for mask in &masks {
                endings.push(format!(":{mask}"));
                endings.push(format!(".{}=1", mask.to_ascii_lowercase()));
                endings.extend(masks.iter().map(|other| format!(":{mask}:{other}")));
            }
            for (at, modifier) in MODIFIERS.iter().enumerate() {
                let mask =
                    masks.get(at % masks.len().max(1)).map(|mask| format!(":{mask}")).unwrap_or_default();
                let other = MODIFIERS[(at * 7 + event.name().len()) % MODIFIERS.len()];
                endings.push(format!(":{modifier}"));
                endings.push(format!("{mask}:{modifier}:{other}"));
                endings.push(format!(":{modifier}:{other}{mask}{mask}:{modifier}"));
            }
            let exchanged = EXCHANGED.iter().find(|(exchanged, _, theirs)| {
                *exchanged == name
                    && libpfm.encode(&format!("{name}:0x0")).is_ok_and(|(select, _)| code(select) == *theirs)
            });
            for ending in endings {
                requests += 1;
                let request = format!("{name}{ending}");
                let ours = match encode(&request, Levels::default()) {
                    Ok(encoding) => {
                        let select = encoding.select();
                        let other = exchanged.map(|(_, ours, theirs)| {
                            assert_eq!(code(select), *ours, "{request}");
                            select & !field(0xfff) | field(*theirs)
                        });
                        Ok((other.unwrap_or(select), encoding.to_string()))
                    }
                    Err(error) => Err(error.kind.number()),
                };
                assert_eq!(ours, libpfm.encode(&request), "{request}");
            }
        }
    }
    eprintln!("{requests} requests encode as in libpfm4");
}

/// Returns the event code in an event select.
const fn code(select: u64) -> u64 {
    select & 0xff | select >> 24 & 0xf00
}

/// Returns an event code at its place in an event select.
const fn field(code: u64) -> u64 {
    code & 0xff | (code & 0xf00) << 24
}

/// libpfm4's functions, with the signatures of pfmlib.h.
struct Libpfm {
    encode: unsafe extern "C" fn(
        *const c_char,
        c_int,
        *mut *mut c_char,
        *mut c_int,
        *mut *mut u64,
        *mut c_int,
    ) -> c_int,
    /// A lock, because the library is not thread-safe.
    turn: Mutex<()>,
    /// The handle that keeps the functions loaded.
    _library: Library,
}

impl Libpfm {
    fn get() -> Option<&'static Self> {
        static LIBRARY: OnceLock<Option<Libpfm>> = OnceLock::new();
        LIBRARY.get_or_init(Self::load).as_ref()
    }

    fn load() -> Option<Self> {
        // SAFETY: a library of this name is libpfm, whose initialisers are those of any C library.
        let library = unsafe { Library::open(Some("libpfm.so.4"), RTLD_NOW | RTLD_LOCAL) }.ok()?;
        // SAFETY: this is the type of the function in pfmlib.h.
        let initialize = unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"pfm_initialize") }.ok()?;
        // SAFETY: this is the type of the function in pfmlib.h.
        let encode = unsafe { library.get(b"pfm_get_event_encoding") }.ok()?;
        let encode = *encode;
        // Encode events for PMUs of other processors too.
        // SAFETY: it is called once, before any other thread of this test reads the environment.
        unsafe { env::set_var("LIBPFM_ENCODE_INACTIVE", "1") };
        // SAFETY: it takes no arguments, and is called once.
        let status = unsafe { initialize() };
        (status == 0).then_some(Self { encode, turn: Mutex::new(()), _library: library })
    }

    /// Returns true if the library has a PMU: without it, no event can be encoded.
    fn has(&self, pmu: &str) -> bool {
        let pmu = Pmu::by_name(pmu).expect(pmu);
        pmu.events().any(|event| self.encode(&format!("{}::{}", pmu.name(), event.name())).is_ok())
    }

    /// Returns the code and the canonical string, or the number of the error.
    fn encode(&self, request: &str) -> Result<(u64, String), c_int> {
        let _turn = self.turn.lock();
        let request = CString::new(request).expect("no zero byte");
        let (mut canonical, mut code) = (ptr::null_mut(), 0_u64);
        let (mut codes, mut count) = (&raw mut code, 1);
        let both = (Levels::KERNEL | Levels::USER).bits() as c_int;
        // SAFETY: the string is terminated, `codes` points to `count` words, and the index may be null.
        let status = unsafe {
            (self.encode)(request.as_ptr(), both, &mut canonical, ptr::null_mut(), &mut codes, &mut count)
        };
        if status != 0 {
            return Err(status);
        }
        // SAFETY: on success it is a terminated string, which is never freed.
        let canonical = unsafe { CStr::from_ptr(canonical) };
        Ok((code, canonical.to_str().expect("ASCII").to_owned()))
    }
}
