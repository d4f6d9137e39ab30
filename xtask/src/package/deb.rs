//! Packages of Debian, by dpkg-deb.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use super::parts::{PARTS, Part};
use super::staged::Staged;
use super::{Build, machine, ran, said};

/// Makes one package of each part.
pub fn make(build: &Build, staged: &Staged, output: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    for part in &PARTS {
        let Some(files) = staged.files.get(part.name) else { continue };
        let folder = output.join("deb").join(part.name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        for file in files {
            let place = folder.join(file);
            fs::create_dir_all(place.parent().context("a file is in a directory")?)?;
            let copied = ["-P", "--preserve=mode"];
            ran(Command::new("cp").args(copied).arg(staged.root.join(file)).arg(&place))?;
        }
        let whole = files.iter().filter(|file| !folder.join(file).is_symlink());
        let sums = said(Command::new("md5sum").current_dir(&folder).arg("--").args(whole))?;
        let control = folder.join("DEBIAN");
        fs::create_dir_all(&control)?;
        fs::write(control.join("md5sums"), sums)?;
        fs::write(control.join("control"), control_of(part, build, &staged.glibc))?;
        if files.iter().any(|file| file.starts_with("usr/lib") && is_library(file)) {
            fs::write(control.join("triggers"), "activate-noawait ldconfig\n")?;
        }
        for script in ["postinst", "prerm", "postrm"] {
            let own = build.sources.join("packaging/deb").join(format!("{}.{script}", part.name));
            if own.is_file() {
                let place = control.join(script);
                fs::copy(own, &place)?;
                ran(Command::new("chmod").arg("755").arg(&place))?;
            }
        }
        let file = output.join(format!("{}_{}_{}.deb", part.name, build.version, machine()));
        ran(Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Zxz", "--build"])
            .args([&folder, &file])
            .stdout(Stdio::null()))?;
        made.push(file);
    }
    Ok(made)
}

fn is_library(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"))
}

/// The file by which dpkg knows a package.
fn control_of(part: &Part, build: &Build, glibc: &str) -> String {
    let libraries = [format!("libc6 (>= {glibc})"), "libgcc-s1".to_owned()];
    let same = part.needs.iter().map(|name| format!("{name} (= {})", build.version));
    let needs: Vec<String> = libraries.into_iter().chain(same).collect();
    let mut text = format!(
        "Package: {}\nVersion: {}\nArchitecture: {}\nMaintainer: the weft authors \
         <weft@localhost>\nSection: net\nPriority: optional\nDepends: {}\n",
        part.name,
        build.version,
        machine(),
        needs.join(", "),
    );
    if part.name == "weft" {
        text += "Suggests: libfabric1, weft-daemon\n";
    }
    if !part.conflicts.is_empty() {
        text += &format!("Conflicts: {}\n", part.conflicts.join(", "));
    }
    let [line, more] = part.text;
    text + &format!("Description: {line}\n {more}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_need_those_of_their_own_version() {
        let build = Build { version: "1.2.3".into(), ..Build::default() };
        let part = PARTS.iter().find(|part| part.name == "weft-dev").expect("it is there");
        let text = control_of(part, &build, "2.34");
        let needs = "Depends: libc6 (>= 2.34), libgcc-s1, weft (= 1.2.3), weft-shmem (= 1.2.3), \
                     libweft (= 1.2.3)\n";
        assert!(text.contains(needs), "{text}");
        assert!(text.ends_with("pkg-config.\n"), "{text}");
    }
}
