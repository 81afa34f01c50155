//! Runs jobs in parallel.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

enum JobMessage<R> {
    Line(String),
    /// The job's result, after its last line.
    Result(R),
}

/// Runs the jobs, one per processor at a time, and returns their results in the order of the jobs.
///
/// `work` gets a job and a function that takes a line of output. Lines of the first unfinished job are passed to
/// `print` at once; lines of later jobs wait for their turn.
pub fn run_in_parallel<J: Sync, R: Send>(
    jobs: &[J],
    work: impl Fn(&J, &mut dyn FnMut(String)) -> R + Sync,
    mut print: impl FnMut(String),
) -> Vec<R> {
    let (next, (sender, receiver)) = (AtomicUsize::new(0), mpsc::channel());
    let workers = thread::available_parallelism().map_or(1, NonZero::get).min(jobs.len());
    let mut waiting: Vec<Vec<String>> = jobs.iter().map(|_| vec![]).collect();
    let mut results: Vec<Option<R>> = jobs.iter().map(|_| None).collect();
    let mut turn = 0;
    thread::scope(|scope| {
        for _ in 0..workers {
            let (next, work, sender) = (&next, &work, sender.clone());
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(index) else { break };
                    // Sending fails only if the receiver has panicked.
                    let send = |message| drop(sender.send((index, message)));
                    send(JobMessage::Result(work(job, &mut |line| send(JobMessage::Line(line)))));
                }
            });
        }
        drop(sender);
        for (index, message) in receiver {
            match message {
                JobMessage::Line(line) if index == turn => print(line),
                JobMessage::Line(line) => waiting[index].push(line),
                JobMessage::Result(result) => results[index] = Some(result),
            }
            while results.get(turn).is_some_and(Option::is_some) {
                turn += 1;
                waiting.get_mut(turn).map(std::mem::take).into_iter().flatten().for_each(&mut print);
            }
        }
    });
    // A job without a result has panicked, and so has the scope.
    results.into_iter().flatten().collect()
}

/// Runs the jobs, at most `workers` at a time, starts them in their order, and returns their results in that order.
/// `on_result` gets each result when its job ends.
pub fn run_with_workers<J: Sync, R: Send>(
    jobs: &[J],
    workers: usize,
    work: impl Fn(&J) -> R + Sync,
    mut on_result: impl FnMut(&J, &R),
) -> Vec<R> {
    let (next, (sender, receiver)) = (AtomicUsize::new(0), mpsc::channel());
    let mut results: Vec<Option<R>> = jobs.iter().map(|_| None).collect();
    thread::scope(|scope| {
        for _ in 0..workers.min(jobs.len()) {
            let (next, work, sender) = (&next, &work, sender.clone());
            scope.spawn(move || {
                while let Some((index, job)) = Some(next.fetch_add(1, Ordering::Relaxed))
                    .and_then(|index| Some((index, jobs.get(index)?)))
                {
                    // Sending fails only if the receiver has panicked.
                    drop(sender.send((index, work(job))));
                }
            });
        }
        drop(sender);
        for (index, result) in receiver {
            on_result(&jobs[index], &result);
            results[index] = Some(result);
        }
    });
    // A job without a result has panicked, and so has the scope.
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn lines_and_results_are_in_the_order_of_the_jobs() {
        for jobs in [0, 1, 2, 3, 20] {
            let jobs: Vec<usize> = (0..jobs).collect();
            let mut heard = vec![];
            let work = |&job: &usize, print_line: &mut dyn FnMut(String)| {
                (0..3).for_each(|line| print_line(format!("{job}.{line}")));
                // Later jobs end first.
                thread::sleep(std::time::Duration::from_millis(20 - job as u64));
                job * 10
            };
            let results = run_in_parallel(&jobs, work, |line| heard.push(line));
            let lines: Vec<String> =
                jobs.iter().flat_map(|job| (0..3).map(move |line| format!("{job}.{line}"))).collect();
            assert_eq!(heard, lines);
            assert_eq!(results, jobs.iter().map(|job| job * 10).collect::<Vec<_>>());
        }
    }

    #[test]
    fn jobs_run_at_the_same_time() {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let all_there = Barrier::new(processors);
        let jobs = vec![(); processors];
        // The test would not end if one job had to wait for another.
        let results = run_in_parallel(&jobs, |(), _| all_there.wait().is_leader(), drop);
        assert_eq!(results.iter().filter(|leads| **leads).count(), 1);
    }

    #[test]
    fn results_are_heard_as_they_come_and_returned_in_the_order_of_the_jobs() {
        let (first_is_heard, mut heard) = (Barrier::new(2), vec![]);
        let work = |&job: &usize| {
            // The first job ends after the second.
            if job < 2 {
                first_is_heard.wait();
            }
            if job == 0 {
                first_is_heard.wait();
            }
            job * 10
        };
        let print = |&job: &usize, &result: &usize| {
            heard.push((job, result));
            if job == 1 {
                first_is_heard.wait();
            }
        };
        assert_eq!(run_with_workers(&[0, 1], 2, work, print), [0, 10]);
        assert_eq!(heard, [(1, 10), (0, 0)]);
    }
}
