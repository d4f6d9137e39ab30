//! An image of the Open Container Initiative, by mmdebstrap and umoci: the C library and weft.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::staged::Staged;
use super::{Build, ran};

/// The packages of Debian in the image, as in those that have no distribution.
const DEBIAN: &str = "base-files,netbase,libc6,libgcc-s1";
/// Of what Debian's packages have, nobody needs these in an image.
const LEFT_OUT: [&str; 5] =
    ["var/cache", "var/lib/apt", "var/lib/dpkg", "usr/share/man", "var/log"];

/// Makes an archive with the image, named `weft:VERSION`.
pub fn make(build: &Build, staged: &Staged, output: &Path) -> anyhow::Result<PathBuf> {
    let tag = build.version.replace('~', "-");
    let place = output.join("oci");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    fs::create_dir_all(&place)?;
    let (layout, files) = (place.join("layout"), base(output)?);
    let image = format!("{}:{tag}", layout.display());
    let umoci = |words: &[&str]| ran(Command::new("umoci").args(words));
    umoci(&["init", "--layout", &layout.display().to_string()])?;
    umoci(&["new", "--image", &image])?;
    for (from, to) in [(&files, "/"), (&staged.root.join("usr"), "/usr")] {
        umoci(&["insert", "--rootless", "--image", &image, &from.display().to_string(), to])?;
    }
    umoci(&[
        "config",
        "--image",
        &image,
        "--author=the weft authors",
        "--config.entrypoint=/usr/bin/weft",
        "--config.cmd=daemon",
        "--manifest.annotation=org.opencontainers.image.licenses=MIT OR Apache-2.0",
        &format!("--manifest.annotation=org.opencontainers.image.revision={}", build.commit),
        &format!("--manifest.annotation=org.opencontainers.image.version={}", build.version),
    ])?;
    umoci(&["gc", "--layout", &layout.display().to_string()])?;
    let file = output.join(format!("weft-{}-oci.tar", build.version));
    ran(Command::new("tar")
        .args(["--sort=name", "-C"])
        .arg(&layout)
        .arg("-cf")
        .arg(&file)
        .arg("."))?;
    Ok(file)
}

/// The files of Debian's packages. Kept: they are fetched.
fn base(output: &Path) -> anyhow::Result<PathBuf> {
    let place = output.join("oci-base");
    if place.exists() {
        return Ok(place);
    }
    let new = output.join("oci-base.new");
    if new.exists() {
        fs::remove_dir_all(&new)?;
    }
    ran(Command::new("mmdebstrap")
        .args(["--variant=extract", "--quiet", &format!("--include={DEBIAN}"), "bookworm"])
        .arg(&new))?;
    for folder in LEFT_OUT {
        let place = new.join(folder);
        if place.exists() {
            fs::remove_dir_all(&place).with_context(|| place.display().to_string())?;
        }
    }
    fs::rename(&new, &place)?;
    Ok(place)
}
