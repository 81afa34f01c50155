//! CDs and USB sticks from which GRUB boots a kernel by multiboot2.

use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

/// GRUB's menu: the kernel, and the same file as the module with its symbols.
const MENU: &str = "\
set timeout=0
menuentry kernel {
    multiboot2 /boot/kernel
    module2 /boot/kernel
    boot
}
";

/// Makes an image that GRUB boots on BIOS and UEFI machines, in the file `out`; the folder `tree` has its content.
///
/// # Errors
/// If a file cannot be written, or there is no `grub-mkrescue`.
pub fn make(kernel: &Path, tree: &Path, out: &Path) -> Result<()> {
    let boot = tree.join("boot");
    std::fs::create_dir_all(boot.join("grub"))?;
    std::fs::copy(kernel, boot.join("kernel"))?;
    std::fs::write(boot.join("grub/grub.cfg"), MENU)?;
    let output = Command::new("grub-mkrescue").arg("-o").arg(out).arg(tree).output();
    let output = output.context("cannot start grub-mkrescue")?;
    ensure!(output.status.success(), "grub-mkrescue failed:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
