//! Reads `/proc/PID/maps`: what is mapped where.

/// The page with system calls from before the vDSO. The kernel emulates the instructions there.
pub(super) const VSYSCALL: std::ops::Range<u64> = 0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000;

/// One line of the file: a range of addresses with the same backing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TaskMapping {
    /// The first address.
    pub(super) start: u64,
    /// The address after the last.
    pub(super) end: u64,
    /// True if it can be executed.
    pub(super) executable: bool,
    /// True if its content can change without a system call of the program.
    pub(super) volatile: bool,
    /// Its offset in the file.
    pub(super) offset: u64,
    /// The file's name; empty or a name in brackets if there is no file.
    pub(super) name: String,
    /// Device and inode.
    file: String,
}

impl TaskMapping {
    /// Reads the lines. Those of another form are skipped; the kernel writes none.
    pub(super) fn parse(maps: &str) -> Vec<Self> {
        maps.lines().filter_map(Self::line).collect()
    }

    /// Returns whether it is backed by a file.
    pub(super) fn is_file(&self) -> bool {
        self.name.starts_with('/')
    }

    fn line(line: &str) -> Option<Self> {
        // start-end perms offset device inode name
        let mut rest = line;
        let mut word = || {
            let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
            rest = after.trim_start();
            word
        };
        let (start, end) = word().split_once('-')?;
        let permissions = word();
        let offset = u64::from_str_radix(word(), 16).ok()?;
        let (device, inode) = (word(), word());
        // A program can write its anonymous memory while it is not executable, and other threads can write it too.
        let anonymous = inode == "0" && !rest.starts_with("[v");
        Some(Self {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            executable: permissions.contains('x'),
            volatile: anonymous || permissions.contains(['w', 's']),
            offset,
            name: rest.into(),
            file: format!("{device} {inode}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lines_of_every_kind() {
        // The line; then start, end, executable, volatile, offset, name.
        type MapsRow = (&'static str, u64, u64, bool, bool, u64, &'static str);
        let rows: [MapsRow; 6] = [
            (
                "555555558000-55555556c000 r-xp 00004000 fe:00 4201                       /usr/bin/a b",
                0x5555_5555_8000,
                0x5555_5556_c000,
                true,
                false,
                0x4000,
                "/usr/bin/a b",
            ),
            ("1000-2000 rw-p 00000000 fe:00 12 /x", 0x1000, 0x2000, false, true, 0, "/x"),
            (
                "1000-2000 r-xs 00000000 00:01 12 /memfd:x (deleted)",
                0x1000,
                0x2000,
                true,
                true,
                0,
                "/memfd:x (deleted)",
            ),
            ("1000-2000 r-xp 00000000 00:00 0 ", 0x1000, 0x2000, true, true, 0, ""),
            (
                "7000-8000 r-xp 00000000 00:00 0                  [vdso]",
                0x7000,
                0x8000,
                true,
                false,
                0,
                "[vdso]",
            ),
            (
                "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0          [vsyscall]",
                0xffff_ffff_ff60_0000,
                0xffff_ffff_ff60_1000,
                true,
                false,
                0,
                "[vsyscall]",
            ),
        ];
        for (line, start, end, executable, volatile, offset, name) in rows {
            let mapping = TaskMapping::line(line).expect(line);
            assert_eq!((mapping.start, mapping.end), (start, end), "{line}");
            assert_eq!(
                (mapping.executable, mapping.volatile, mapping.offset),
                (executable, volatile, offset),
                "{line}"
            );
            assert_eq!(mapping.name, name);
            assert_eq!(mapping.is_file(), !matches!(name, "" | "[vdso]" | "[vsyscall]"), "{line}");
        }
        assert_eq!(TaskMapping::line("1000-2000"), None);
        assert_eq!(TaskMapping::parse("1000-2000 r-xp 0 0:0 1 /a\n3000-4000 r--p 0 0:0 1 /a\n").len(), 2);
    }
}
