use super::*;
use crate::pugmark::{
    cli::{Cli, PugmarkCommand},
    coverage::Executed,
    named_session::NamedSession,
    verdict::Verdict,
    visitors::{CallEvent, Time},
};
use crate::source::perf_data::builder::{Made, PerfFileBuilder, info, trace};
use clap::Parser;

/// Addresses, each with its count of executions.
type Insns = Vec<(u64, u64)>;

/// The options of a command.
#[derive(Parser)]
struct Command {
    #[command(flatten)]
    input: Input,
}

/// A folder with a recording and the files of its programs, which is removed when the value is dropped.
struct Recorded(PathBuf);

impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Recorded {
    fn new(name: &str, records: Vec<Vec<u8>>) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-session-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        // 1000: jnz 1003; 1002: nop; 1003: jmp rax
        fs::write(folder.join("a"), [0x75, 0x01, 0x90, 0xff, 0xe0]).unwrap();
        // 1000: nop, nop, jmp rax
        fs::write(folder.join("b"), [0x90, 0x90, 0xff, 0xe0]).unwrap();
        fs::write(folder.join("perf.data"), PerfFileBuilder::new(records).file()).unwrap();
        Self(folder)
    }

    /// Adds another file of the recording, which comes before the others on a command line.
    fn add(&self, records: Vec<Vec<u8>>) {
        fs::write(self.0.join("another.data"), PerfFileBuilder::new(records).file()).unwrap();
    }

    fn load(&self) -> (Input, Traced) {
        let files = ["another.data", "perf.data"].map(|name| self.0.join(name));
        let files = files.iter().filter(|file| file.exists()).map(|file| file.display().to_string());
        let symfs = ["--symfs".to_owned(), self.0.display().to_string()];
        let words = std::iter::once("pugmark".to_owned()).chain(files).chain(symfs);
        let input = Command::parse_from(words).input;
        let traced = input.traces(&mut Verdict::default()).unwrap().remove(0);
        (input, traced)
    }

    /// Returns the process and the name of each lane, and its instructions with their counts.
    fn lanes(&self) -> Vec<(i32, String, Insns)> {
        let (input, traced) = self.load();
        let mut progress = Progress::hidden();
        let loaded = LoadedSession::load(&input, &traced, &mut progress).unwrap();
        let sections = loaded.sections();
        let executed = Executed::in_lanes(&loaded.session(&sections), &mut progress);
        let lane = |(lane, executed): (&SessionLane, Executed)| {
            assert_eq!(executed.errors, 0, "{executed:x?}");
            let part = lane.part.clone().unwrap_or_default();
            let insns = executed.insns.into_iter().collect();
            (part.pid.unwrap_or(-1), part.comm.unwrap_or_default(), insns)
        };
        loaded.lanes.iter().zip(executed).map(lane).collect()
    }

    /// Returns for each lane the number of instructions, and of functions that were entered.
    fn walked(&self) -> Vec<(u64, usize)> {
        let (input, traced) = self.load();
        let mut progress = Progress::hidden();
        let named = NamedSession::load(&input, &traced, &[], &mut progress).unwrap();
        let mut entered = vec![0; named.names.len()];
        let mut visitors = vec![];
        for count in &mut entered {
            visitors.push(move |_: Time, what: CallEvent| {
                *count += usize::from(matches!(what, CallEvent::Enter { .. }))
            });
        }
        let (ends, errors) = named.walk(&mut progress, &mut visitors);
        assert_eq!(errors, 0);
        drop(visitors);
        ends.iter().map(|end| end.insns).zip(entered).collect()
    }
}

const fn made(time: u64, cpu: u32, pid: u32) -> Made {
    Made { time, cpu, task: (pid, pid) }
}

fn tsc(value: u8) -> Vec<u8> {
    vec![0x19, value, 0, 0, 0, 0, 0, 0]
}

/// Returns the packets where tracing of a program begins: a PSB+ without an address.
fn begins(time: u8) -> Vec<u8> {
    [&[0x02, 0x82].repeat(8)[..], &tsc(time), &[0x99, 1, 0x02, 0x23]].concat()
}

/// The trace of the program in the file a, up to a system call: TIP.PGE (1000), TNT (taken), TIP.PGD.
const A: [u8; 9] = [0x71, 0, 0x10, 0, 0, 0, 0, 0x06, 0x01];
const B: [u8; 8] = [0x71, 0, 0x10, 0, 0, 0, 0, 0x01];
const OF_A: [u64; 2] = [0x1000, 0x1003];
const OF_B: [u64; 3] = [0x1000, 0x1001, 0x1002];

fn times(addresses: &[u64], times: u64) -> Insns {
    addresses.iter().map(|ip| (*ip, times)).collect()
}

/// Returns the records of two processes with code at the same address, one after the other on a processor; then the
/// first one executes the program of the other.
fn two_processes() -> Vec<Vec<u8>> {
    let bytes = [begins(10), A.to_vec(), begins(20), B.to_vec(), begins(30), A.to_vec(), tsc(40), B.to_vec()];
    vec![
        info(false),
        made(1, 1, 7).named("one", true),
        made(2, 1, 7).maps(0x1000, 0x100, 0, "/a"),
        made(3, 1, 7).forks((8, 8)),
        made(4, 1, 8).named("two", true),
        made(5, 1, 8).maps(0x1000, 0x100, 0, "/b"),
        made(6, 1, 7).begins(),
        made(15, 1, 7).switches_to((8, 8)),
        made(25, 1, 8).switches_to((7, 7)),
        made(35, 1, 7).named("three", true),
        made(36, 1, 7).maps(0x1000, 0x100, 0, "/b"),
        trace(0, 0, 1, 7, &bytes.concat()),
    ]
}

#[test]
fn each_process_is_decoded_with_its_own_code() {
    let recorded = Recorded::new("processes", two_processes());
    let expected = [
        (7, "one".to_owned(), times(&OF_A, 2)),
        (8, "two".into(), times(&OF_B, 1)),
        (7, "three".into(), times(&OF_B, 1)),
    ];
    assert_eq!(recorded.lanes(), expected);
    assert_eq!(recorded.walked().iter().map(|(insns, _)| *insns).collect::<Vec<_>>(), [4, 3, 3]);
}

#[test]
fn several_files_are_one_recording_and_each_says_what_was_so_when_it_began() {
    let [mut first, mut second] = [two_processes(), vec![info(false)]];
    first.pop();
    // At 38 perf begins another file, and writes what each process is and has mapped.
    second.push(made(0, 1, 7).named("three", false));
    second.push(made(0, 1, 7).maps(0x1000, 0x100, 0, "/b"));
    second.push(made(0, 1, 8).named("two", false));
    second.push(made(0, 1, 8).maps(0x1000, 0x100, 0, "/b"));
    second.push(made(50, 1, 7).aux(0));
    let bytes = [begins(10), A.to_vec(), begins(20), B.to_vec(), begins(30), A.to_vec()].concat();
    first.push(trace(0, 0, 1, 7, &bytes));
    second.push(trace(0, bytes.len() as u64, 1, 7, &[tsc(40), B.to_vec()].concat()));
    let recorded = Recorded::new("several", first);
    recorded.add(second);
    let expected = [
        (7, "one".to_owned(), times(&OF_A, 2)),
        (8, "two".into(), times(&OF_B, 1)),
        (7, "three".into(), times(&OF_B, 1)),
    ];
    assert_eq!(recorded.lanes(), expected);
    // Other files are no recording of perf.
    let words = ["pugmark", "/dev/null", "/dev/null"];
    let error = Command::parse_from(words).input.traces(&mut Verdict::default()).unwrap_err().to_string();
    assert!(error.starts_with("/dev/null is no file of `perf record`"), "{error}");
}

/// The address of the kernel's code, and that code at first: nop, nop, jmp rax.
const KERNEL: u64 = 0xffff_ffff_8100_0000;
const KERNEL_CODE: [u8; 4] = [0x90, 0x90, 0xff, 0xe0];
/// TIP.PGE and TIP to there.
const TO_KERNEL: [[u8; 7]; 2] = [[0x71, 0, 0, 0, 0x81, 0xff, 0xff], [0x6d, 0, 0, 0, 0x81, 0xff, 0xff]];

#[test]
fn the_kernels_code_is_what_it_is_at_its_time_in_one_lane() {
    let [begin, goes_on] = TO_KERNEL;
    let bytes =
        [&begins(10), &begin[..], &tsc(20), &goes_on, &tsc(40), &goes_on, &tsc(60), &goes_on, &[0x01]];
    // jmp to the next but one, and the nops again.
    let (nops, jump) = (&KERNEL_CODE[..2], &[0xeb, 0][..]);
    let recorded = Recorded::new(
        "poked",
        vec![
            info(false),
            made(6, 1, 7).begins(),
            // Memory that was no code before.
            made(7, 1, 7).pokes(KERNEL, &[], &KERNEL_CODE),
            made(35, 2, 8).pokes(KERNEL, nops, jump),
            made(55, 2, 8).pokes(KERNEL, jump, nops),
            trace(0, 0, 1, 7, &bytes.concat()),
        ],
    );
    // A jump is executed where its target is known: in the code after the change. Nops, jump, nops twice.
    let expected = vec![(KERNEL, 4), (KERNEL + 1, 3), (KERNEL + 2, 4)];
    assert_eq!(recorded.lanes(), [(7, String::new(), expected)]);
    assert_eq!(recorded.walked()[0].0, 11);
    // The first and the last code are the same.
    let (input, traced) = recorded.load();
    let loaded = LoadedSession::load(&input, &traced, &mut Progress::hidden()).unwrap();
    assert_eq!((loaded.slices.len(), loaded.codes.len()), (3, 2));
}

#[test]
fn one_thread_of_a_recording_has_its_instructions_alone() {
    let recorded = Recorded::new("one", two_processes());
    let all = recorded.lanes();
    assert!(all.len() > 1 && all.iter().all(|(_, _, insns)| !insns.is_empty()), "{all:?}");
    let of = |tid| {
        let (input, mut traced) = recorded.load();
        traced.tid = Some(tid);
        let mut progress = Progress::hidden();
        let loaded = LoadedSession::load(&input, &traced, &mut progress)?;
        let sections = loaded.sections();
        let executed = Executed::in_lanes(&loaded.session(&sections), &mut progress).into_iter();
        anyhow::Ok(executed.map(|executed| executed.insns.into_iter().collect::<Insns>()).collect::<Vec<_>>())
    };
    for (tid, ..) in &all {
        let expected = all.iter().map(|(pid, _, insns)| if pid == tid { insns.clone() } else { vec![] });
        assert_eq!(of(*tid).unwrap(), expected.collect::<Vec<_>>(), "{tid}");
    }
    let error = of(9).unwrap_err().to_string();
    assert!(
        error.starts_with("--tid 9: there is no such thread among: ") && error.contains("tid 7"),
        "{error}"
    );
}

#[test]
fn a_mapping_that_is_replaced_holds_up_to_its_time() {
    let bytes = [begins(10), A.to_vec(), tsc(40), B.to_vec()].concat();
    let recorded = Recorded::new(
        "replaced",
        vec![
            info(false),
            made(2, 1, 7).maps(0x1000, 0x100, 0, "/a"),
            made(6, 1, 7).begins(),
            made(35, 1, 7).maps(0x1000, 0x100, 0, "/b"),
            trace(0, 0, 1, 7, &bytes),
        ],
    );
    let lanes: Vec<_> = recorded.lanes().into_iter().map(|(_, _, insns)| insns).collect();
    assert_eq!(lanes, [times(&OF_A, 1), times(&OF_B, 1)]);
}

#[test]
fn a_thread_that_moves_to_another_processor_is_one_lane() {
    // A call at 1000 that returns on the other processor would be two lanes' otherwise.
    let recorded = Recorded::new(
        "moved",
        vec![
            info(false),
            made(2, 1, 7).maps(0x1000, 0x100, 0, "/a"),
            made(6, 1, 7).begins(),
            made(15, 1, 7).switches_to((0, 0)),
            made(16, 2, 0).switches_to((7, 7)),
            made(25, 2, 7).switches_to((0, 0)),
            made(26, 1, 0).switches_to((7, 7)),
            trace(0, 0, 1, 7, &[begins(10), A.to_vec(), begins(30), A.to_vec()].concat()),
            trace(1, 0, 2, 7, &[begins(20), A.to_vec()].concat()),
        ],
    );
    assert_eq!(recorded.lanes(), [(7, String::new(), times(&OF_A, 3))]);
    // A function that was entered on one processor is not entered again on another one.
    assert_eq!(recorded.walked()[0].0, 6);
}

#[test]
fn traces_are_decoded_side_by_side_as_one_after_the_other() {
    let on = |cpu: u32| {
        let times = if cpu.is_multiple_of(2) { 1 } else { 3 };
        trace(cpu, 0, cpu, 7, &[begins(10), A.repeat(times)].concat())
    };
    let maps = [info(false), made(2, 1, 7).maps(0x1000, 0x100, 0, "/a")];
    let recorded = Recorded::new("side", maps.into_iter().chain((0..5).map(on)).collect());
    let (_, traced) = recorded.load();
    let decoded = |threads: &str| {
        let file = recorded.0.join("perf.data").display().to_string();
        let symfs = recorded.0.display().to_string();
        let words = ["pugmark", "decode", "--hash", "--threads", threads, "--symfs", &symfs, &file];
        let PugmarkCommand::Decode(options) = Cli::parse_from(words).command else { unreachable!() };
        let all = options.decode(&traced).unwrap().into_iter();
        all.map(|one| (one.totals.instructions, one.totals.hash)).collect::<Vec<_>>()
    };
    let alone = decoded("1");
    assert_eq!(alone.iter().map(|(insns, _)| *insns).collect::<Vec<_>>(), [2, 6, 2, 6, 2]);
    for threads in ["2", "3", "8"] {
        assert_eq!(decoded(threads), alone, "{threads}");
    }
}

#[test]
fn the_trace_of_a_thread_is_that_of_its_process() {
    let of_thread = |bytes: &[u8]| trace(0, 0, u32::MAX, 70, bytes);
    let recorded = Recorded::new(
        "thread",
        vec![
            info(false),
            made(2, 1, 7).maps(0x1000, 0x100, 0, "/a"),
            made(2, 1, 8).maps(0x1000, 0x100, 0, "/b"),
            made(3, 1, 8).forks((8, 70)),
            of_thread(&[begins(10), B.to_vec()].concat()),
        ],
    );
    assert_eq!(recorded.lanes(), [(8, String::new(), times(&OF_B, 1))]);
}

#[test]
fn a_recording_without_a_trace_is_an_error() {
    let recorded = Recorded::new("none", vec![info(false), made(2, 1, 7).maps(0x1000, 0x100, 0, "/a")]);
    let file = recorded.0.join("perf.data").display().to_string();
    let input = Command::parse_from(["pugmark".to_owned(), file]).input;
    let error = format!("{:#}", input.traces(&mut Verdict::default()).unwrap_err());
    assert!(error.ends_with("there is no byte of a trace in it"), "{error}");
}

/// Instructions as perf itself lists them, from recordings beside the checkout. Their hash is of the sorted addresses,
/// one a line.
#[test]
fn recordings_of_several_processes_have_the_instructions_that_perf_lists() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases/perf");
    let Ok(expected) = fs::read(folder.join("expected.json")) else {
        // Written past the capture of output, so that the skip is seen.
        let _ =
            std::io::Write::write_all(&mut std::io::stderr(), b"skipped: there is no ../shared/cases/perf\n");
        return;
    };
    let expected: serde_json::Value = serde_json::from_slice(&expected).unwrap();
    for (name, values) in expected.as_object().unwrap() {
        let (file, root) =
            (folder.join(name).display().to_string(), folder.join("root").display().to_string());
        let words = ["pugmark", &file, "--symfs", &root].map(str::to_owned);
        let input = Command::parse_from(words).input;
        let traced = input.traces(&mut Verdict::default()).unwrap().remove(0);
        let mut progress = Progress::hidden();
        let loaded = LoadedSession::load(&input, &traced, &mut progress).unwrap();
        let sections = loaded.sections();
        let mut addresses = vec![];
        for executed in Executed::in_lanes(&loaded.session(&sections), &mut progress) {
            assert_eq!(executed.errors, 0);
            for (ip, count) in executed.insns {
                addresses.extend(std::iter::repeat_n(format!("{ip:x}"), count as usize));
            }
        }
        addresses.sort();
        assert_eq!(addresses.len() as u64, values["instructions"].as_u64().unwrap(), "{name}");
        let hash = sha256(addresses.join("\n").as_bytes());
        assert!(hash.starts_with(values["sorted_sha256"].as_str().unwrap()), "{name}: {hash}");
    }
}

/// Computes SHA-256 in hex digits by the system's program.
fn sha256(bytes: &[u8]) -> String {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut command = Command::new("sha256sum");
    let mut running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    running.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = running.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}
