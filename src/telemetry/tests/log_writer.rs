use std::fs::File;
use std::io::{BufRead, BufReader, PipeWriter, pipe};

use super::*;

const LINE: &[u8] = b"a line of the log, as long as some lines are\n";

impl LineSink for PipeWriter {
    fn name(&self) -> String {
        "a pipe".to_owned()
    }
}

impl LineSink for File {
    fn name(&self) -> String {
        "a file".to_owned()
    }
}

fn counter() -> IntCounter {
    IntCounter::new("dropped", "dropped").unwrap()
}

#[test]
fn all_lines_are_written_in_their_order() {
    let (reader, sink) = pipe().unwrap();
    let writer = LogWriter::start(sink).unwrap();
    let reading = thread::spawn(move || {
        let lines = BufReader::new(reader).lines().take(10_000);
        lines.map(Result::unwrap).collect::<Vec<_>>()
    });
    (0..10_000).for_each(|n| writer.push(format!("line {n}\n").as_bytes()));
    writer.flush();
    let expected: Vec<_> = (0..10_000).map(|n| format!("line {n}")).collect();
    assert_eq!(reading.join().unwrap(), expected);
}

#[test]
fn a_pipe_that_nobody_reads_holds_up_nobody_and_lines_beyond_the_queue_are_counted() {
    let (reader, sink) = pipe().unwrap();
    let (writer, counter) = (LogWriter::start(sink).unwrap(), counter());
    let pushed = 4 * QUEUE_LEN_MAX / LINE.len();
    (0..pushed).for_each(|_| writer.push(LINE));
    // Counts those that were dropped before, too.
    writer.count_dropped_in(counter.clone());
    let dropped = counter.get() as usize;
    assert!((pushed / 4..pushed).contains(&dropped), "{dropped} of {pushed}");
    let began = tokio::time::Instant::now();
    writer.flush();
    assert!(began.elapsed() < FLUSH_TIMEOUT * 5, "{:?}", began.elapsed());

    // Read again, and every line comes that was not dropped.
    let mut lines = BufReader::new(reader).split(b'\n');
    for n in 0..pushed - dropped {
        assert_eq!(lines.next().unwrap().unwrap(), LINE[..LINE.len() - 1], "line {n}");
    }
    writer.push(b"the last\n");
    assert_eq!(lines.next().unwrap().unwrap(), b"the last");
    assert_eq!(counter.get() as usize, dropped);
}

#[test]
fn lines_that_cannot_be_written_are_counted_and_the_next_are_tried() {
    let (reader, closed) = pipe().unwrap();
    drop(reader);
    let full = File::options().write(true).open("/dev/full").unwrap();
    for writer in [LogWriter::start(closed).unwrap(), LogWriter::start(full).unwrap()] {
        let counter = counter();
        writer.count_dropped_in(counter.clone());
        for n in 1..=5 {
            writer.push(LINE);
            writer.flush();
            assert_eq!(counter.get(), n);
        }
    }
}

#[test]
fn a_pipe_that_somebody_made_non_blocking_loses_nothing() {
    let (reader, sink) = pipe().unwrap();
    rustix::io::ioctl_fionbio(&sink, true).unwrap();
    let (writer, counter) = (LogWriter::start(sink).unwrap(), counter());
    writer.count_dropped_in(counter.clone());
    let pushed = QUEUE_LEN_MAX / 2 / LINE.len();
    (0..pushed).for_each(|_| writer.push(LINE));
    assert_eq!(BufReader::new(reader).lines().take(pushed).count(), pushed);
    assert_eq!(counter.get(), 0);
}

#[test]
fn a_file_that_was_moved_away_is_made_again_when_told_and_no_line_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (path, moved) = (dir.path().join("calls.log"), dir.path().join("calls.log.1"));
    let writer = LogWriter::start(LineFile::open(path.clone()).unwrap()).unwrap();
    writer.push(b"one\n");
    writer.flush();
    std::fs::rename(&path, &moved).unwrap();
    writer.push(b"two\n");
    writer.flush();
    writer.reopen();
    // Also without a further line: whoever rotates logs waits for the file.
    while !path.exists() {
        thread::yield_now();
    }
    writer.push(b"three\n");
    writer.flush();
    assert_eq!(std::fs::read_to_string(&moved).unwrap(), "one\ntwo\n");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
    // Where no file can be made, the open one stays.
    std::fs::remove_dir_all(dir.path()).unwrap();
    writer.reopen();
    writer.push(b"four\n");
    writer.flush();
}
