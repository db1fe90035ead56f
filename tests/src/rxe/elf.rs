//! What an ELF file says it needs: shared libraries of a program, modules of a kernel module.

use std::path::Path;

use anyhow::{Context, Result};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Object, ObjectSection, elf};

/// The shared libraries that a program or library names; none for any other kind of file.
///
/// # Errors
/// When the file cannot be read, or is a damaged ELF file.
pub fn needed_libraries(path: &Path) -> Result<Vec<String>> {
    let data = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let Ok(header) = elf::FileHeader64::<object::Endianness>::parse(&*data) else {
        return Ok(Vec::new());
    };
    needed(header, &data).with_context(|| format!("{} is damaged", path.display()))
}

fn needed(
    header: &elf::FileHeader64<object::Endianness>,
    data: &[u8],
) -> object::Result<Vec<String>> {
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let mut names = Vec::new();
    for segment in header.program_headers(endian, data)? {
        let Some(entries) = segment.dynamic(endian, data)? else { continue };
        let Some((_, strings)) = sections.dynamic(endian, data)? else { continue };
        let strings = sections.strings(endian, data, strings)?;
        for entry in entries.iter().filter(|entry| entry.tag32(endian) == Some(elf::DT_NEEDED)) {
            let name = entry.string(endian, strings)?;
            names.push(String::from_utf8_lossy(name).into_owned());
        }
    }
    Ok(names)
}

/// The kernel modules that a module depends on, as its `.modinfo` section has them.
///
/// # Errors
/// When the file cannot be read or is no kernel module.
pub fn module_dependencies(path: &Path) -> Result<Vec<String>> {
    let data = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let file = object::File::parse(&*data)?;
    let section = file.section_by_name(".modinfo").context("no .modinfo section")?;
    let text = String::from_utf8_lossy(section.data()?).into_owned();
    let depends = text.split('\0').find_map(|entry| entry.strip_prefix("depends="));
    let names = depends.unwrap_or_default().split(',').filter(|name| !name.is_empty());
    Ok(names.map(|name| name.replace('-', "_")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_needs_the_c_library() {
        let names = needed_libraries(&std::env::current_exe().unwrap()).unwrap();
        assert!(names.iter().any(|name| name == "libc.so.6"), "{names:?}");
    }

    #[test]
    fn a_script_needs_nothing() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/init");
        assert!(needed_libraries(&script).unwrap().is_empty());
    }
}
