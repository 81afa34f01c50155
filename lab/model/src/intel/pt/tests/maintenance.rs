//! MNT packets, which an implementation sends when it chooses.

use crate::intel::IntelSettings;
use crate::intel::tests::machine::*;

#[test]
fn each_psb_is_followed_by_one_where_the_settings_say_so() {
    for (maintenance, each) in [(false, 0), (true, 1)] {
        for psb_before_pge in [false, true] {
            let settings = IntelSettings { maintenance, psb_before_pge, ..IntelSettings::default() };
            let mut m = Machine::new("skylake", settings);
            m.start(ALL);
            for n in 0..2000 {
                m.go(JMP_RAX, 0x40_0000 + n % 2);
            }
            m.stop();
            let trace = m.trace();
            let followed = trace.windows(2).filter(|two| two[0] == "PSBEND" && two[1].starts_with("MNT "));
            let psbs = trace.iter().filter(|packet| *packet == "PSB").count();
            assert!(psbs > 1);
            assert_eq!(followed.count(), psbs * each, "{maintenance} {psb_before_pge}");
            assert_eq!(trace.iter().filter(|packet| packet.starts_with("MNT ")).count(), psbs * each);
        }
    }
}
