//! A LibAFL fuzzer finds the three bytes that crash a program without instrumentation.

use libafl::prelude::*;
use libafl_bolts::{rands::StdRand, tuples::tuple_list};
use pugmark_libafl::{EDGES, EdgeDecoder, RecordedExecutor};
use pugmark_recorder::{Engine, RecordOptions, emulator_is_installed, record};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

/// A folder of this test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn make(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("pugmark-libafl-{name}-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// Returns the options to record the target on the folder's file `input`.
    fn options(&self) -> RecordOptions {
        let [target, input, out] = ["target", "input", "rec"].map(|name| self.0.join(name));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/target.c");
        let compiled = Command::new("cc").arg("-static").arg("-o").arg(&target).arg(source).status().unwrap();
        assert!(compiled.success());
        let engine = Engine::Emulator;
        RecordOptions { out, engine, limit: Some(10_000_000), ..RecordOptions::new([target, input]) }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns whether the emulator is there; says so if it is not.
fn may_record() -> bool {
    let may = emulator_is_installed();
    if !may {
        println!("skipped: no user-mode emulator with plugins");
    }
    may
}

type Edges = HitcountsMapObserver<StdMapObserver<'static, u8, false>>;

fn observer() -> Edges {
    HitcountsMapObserver::new(StdMapObserver::owned("edges", vec![0; EDGES]))
}

/// Returns an executor of the target in `folder`, whose observer is `edges`.
fn executor(folder: &Folder, edges: Edges) -> RecordedExecutor<(Edges, ())> {
    let input = folder.0.join("input");
    RecordedExecutor::new(folder.options(), input, tuple_list!(edges), |observers| &mut observers.0)
}

#[test]
fn a_crash_behind_three_bytes_is_found() {
    if !may_record() {
        return;
    }
    let folder = Folder::make("crash");
    let edges = observer();
    let (mut feedback, mut objective) = (MaxMapFeedback::new(&edges), CrashFeedback::new());
    let (corpus, solutions) = (InMemoryCorpus::<BytesInput>::new(), InMemoryCorpus::new());
    let rand = StdRand::with_seed(1);
    let mut state = StdState::new(rand, corpus, solutions, &mut feedback, &mut objective).unwrap();
    let mut manager = SimpleEventManager::new(NopMonitor::new());
    let mut fuzzer = StdFuzzer::new(QueueScheduler::new(), feedback, objective);
    let mut executor = executor(&folder, edges);
    fuzzer.add_input(&mut state, &mut executor, &mut manager, BytesInput::new(b"aaaa".to_vec())).unwrap();
    let mut stages = tuple_list!(StdMutationalStage::new(HavocScheduledMutator::new(havoc_mutations())));
    while state.solutions().count() == 0 && *state.executions() < 2000 {
        fuzzer.fuzz_one(&mut stages, &mut executor, &mut state, &mut manager).unwrap();
    }
    println!("{} executions", state.executions());
    let solution = state.solutions().last().expect("a crash is found in 2000 executions");
    let solution = state.solutions().cloned_input_for_id(solution).unwrap();
    let bytes: &[u8] = solution.as_ref();
    assert!(bytes[..3].iter().all(|byte| *byte > 127), "{bytes:x?}");
    // Each comparison that was passed on the way is an edge, and so an input that was kept.
    assert!(state.corpus().count() >= 3, "{}", state.corpus().count());
    assert_eq!(executor.losses(), 0);
}

#[test]
fn an_endless_loop_is_a_time_out_and_other_ends_are_what_they_are() {
    if !may_record() {
        return;
    }
    let folder = Folder::make("ends");
    let mut executor = executor(&folder, observer());
    let mut state = NopState::<BytesInput>::new();
    let mut run = |input: &[u8]| {
        let input = BytesInput::new(input.to_vec());
        let kind = executor
            .run_target(&mut NopFuzzer::new(), &mut state, &mut NopEventManager::new(), &input)
            .unwrap();
        (kind, executor.observers().0.count_bytes())
    };
    let (kinds, edges): (Vec<_>, Vec<_>) =
        [&b"a"[..], b"!", b"\xff\xff\xff"].map(&mut run).into_iter().unzip();
    assert_eq!(kinds, [ExitKind::Ok, ExitKind::Timeout, ExitKind::Crash]);
    // Nothing clears the map here: each input adds edges to those before.
    assert!(edges[0] > 0 && edges.is_sorted_by(|one, next| one < next), "{edges:?}");
}

/// Changes the bytes of a file.
type Damage = fn(Vec<u8>) -> Vec<u8>;

#[test]
fn a_part_that_is_damaged_is_an_error_with_its_file() {
    if !may_record() {
        return;
    }
    let folder = Folder::make("damaged");
    fs::write(folder.0.join("input"), b"a").unwrap();
    let recording = record(&folder.options(), &mut |_| {}).unwrap();
    let part = &recording.parts[0].dir;
    let mut decoder = EdgeDecoder::default();
    let mut add = || decoder.add(part, &mut [0; EDGES]).map_err(|error| error.to_string());
    assert_eq!(add(), Ok(()));
    let damages: [(&str, Damage, &str); 3] = [
        // Code that is executed is missing.
        ("code.bin", |code| code[..code.len() - 1].to_vec(), "a section is not in the file of code"),
        ("image.json", |_| br#"{"sections":[]}"#.to_vec(), "trace.pt: "),
        // There is no such packet.
        ("trace.pt", |trace| [&trace[..trace.len() / 2], b"\x02\xff\xff"].concat(), "trace.pt: "),
    ];
    for (name, damage, words) in damages {
        let path = part.join(name);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, damage(whole.clone())).unwrap();
        let found = add().unwrap_err();
        assert!(found.contains(words), "{name}: {found}");
        fs::remove_file(&path).unwrap();
        assert!(add().unwrap_err().contains(name));
        fs::write(&path, whole).unwrap();
    }
    assert_eq!(add(), Ok(()));
}
