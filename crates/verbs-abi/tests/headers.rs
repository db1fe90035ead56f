//! Asks the C compiler whether the installed headers agree with this crate: every size, offset and
//! constant.
//!
//! Headers of any version from v44 on will do; fields and constants that they do not have yet are
//! left out. Without headers (packages libibverbs-dev and librdmacm-dev) the test reports a skip.

use std::{collections::HashSet, fs, io::Write, path::Path, process::Command};

const HEADERS: [&str; 7] = [
    "infiniband/verbs.h",
    "infiniband/verbs_api.h",
    "infiniband/sa.h",
    "rdma/rdma_cma.h",
    "rdma/rsocket.h",
    "rdma/ib_user_verbs.h",
    "rdma/ib_user_sa.h",
];

/// Enumerators that verbs_api.h takes from this header, which is asked about nothing else.
const INDIRECT_HEADER: &str = "infiniband/ib_user_ioctl_verbs.h";

const LAYOUTS: &str = include_str!("../src/layouts.rs");

const CONSTANTS: [&str; 10] = [
    include_str!("../src/address.rs"),
    include_str!("../src/cma.rs"),
    include_str!("../src/context.rs"),
    include_str!("../src/cq.rs"),
    include_str!("../src/device.rs"),
    include_str!("../src/memory.rs"),
    include_str!("../src/port.rs"),
    include_str!("../src/qp.rs"),
    include_str!("../src/srq.rs"),
    include_str!("../src/work.rs"),
];

/// Names that Rust or this crate spells differently from C.
fn c_field<'a>(structure: &str, field: &'a str) -> &'a str {
    match (structure, field) {
        ("ibv_send_wr", "local") => "bind_mw",
        (_, "type_") => "type",
        (_, "priv_") => "priv",
        _ => field,
    }
}

/// Every identifier in the installed headers, or `None` when one of them is missing.
fn installed_identifiers() -> Option<HashSet<String>> {
    let mut identifiers = HashSet::new();
    for header in HEADERS.iter().chain([&INDIRECT_HEADER]) {
        let text = fs::read_to_string(Path::new("/usr/include").join(header)).ok()?;
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        identifiers.extend(words.map(str::to_owned));
    }
    Some(identifiers)
}

/// Name, size, fields with their offsets.
type Layout = (&'static str, &'static str, Vec<(&'static str, &'static str)>);

/// `NAME: SIZE ALIGN | FIELD @ OFFSET ...;` as the `layouts!` block has them.
fn layouts() -> impl Iterator<Item = Layout> {
    let (_, block) = LAYOUTS.split_once("layouts! {").expect("the block");
    block.split(';').filter_map(|entry| {
        let (head, fields) = entry.split_once('|')?;
        let (name, size) = head.split_once(':')?;
        let words: Vec<&str> = fields.split_whitespace().filter(|word| *word != "@").collect();
        let size = size.split_whitespace().next()?;
        Some((name.trim(), size, words.chunks(2).map(|pair| (pair[0], pair[1])).collect()))
    })
}

fn layout_questions(known: &HashSet<String>) -> Vec<String> {
    let mut questions = Vec::new();
    for (name, size, fields) in layouts().filter(|(name, ..)| known.contains(*name)) {
        let c_type =
            if name == "ibv_gid" { "union ibv_gid".into() } else { format!("struct {name}") };
        let mut complete = true;
        for (field, offset) in fields {
            let field = c_field(name, field);
            // verbs_context grows at its front: what is fixed is the distance to its end.
            let (from, ours) = if name == "verbs_context" {
                (format!("sizeof({c_type}) - "), format!("{size} - {offset}"))
            } else {
                (String::new(), offset.to_owned())
            };
            if known.contains(field) {
                questions.push(format!("{from}offsetof({c_type}, {field}) == {ours}"));
            } else {
                println!("{name}.{field} is newer than the installed headers");
                complete = false;
            }
        }
        if complete {
            questions.push(format!("sizeof({c_type}) == {size}"));
        }
    }
    questions
}

fn constant_questions(known: &HashSet<String>) -> Vec<String> {
    let lines = CONSTANTS.iter().flat_map(|text| text.lines());
    lines
        .filter_map(|line| line.strip_prefix("    ")?.strip_suffix(',')?.split_once(" = "))
        .filter(|(name, _)| known.contains(*name))
        // A C enum may be signed where our type is not; comparing the low 64 bits is the same for
        // both.
        .map(|(name, value)| {
            let value = if value.starts_with("0x") {
                format!("{}ull", value.replace('_', ""))
            } else {
                value.to_owned()
            };
            format!("(unsigned long long)({name}) == (unsigned long long)({value})")
        })
        .collect()
}

#[test]
#[cfg_attr(not(target_arch = "x86_64"), ignore = "the recorded layouts are those of x86_64")]
fn installed_headers_agree() {
    let Some(known) = installed_identifiers() else {
        // Written past the test harness, which would keep it to itself.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: no RDMA headers to compare with; apt-get install libibverbs-dev librdmacm-dev"
        );
        return;
    };
    let (layouts, constants) = (layout_questions(&known), constant_questions(&known));
    assert!(layouts.len() > 700 && constants.len() > 250, "the tables were not understood");

    let mut source = "#include <stddef.h>\n".to_owned();
    source.extend(HEADERS.iter().map(|header| format!("#include <{header}>\n")));
    for question in layouts.iter().chain(&constants) {
        source.push_str(&format!("_Static_assert({question}, \"{question}\");\n"));
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("headers.c");
    fs::write(&file, source).unwrap();
    let output =
        Command::new("cc").arg("-fsyntax-only").arg(&file).output().expect("cc is installed");
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}");
    println!("{} layouts and {} constants agree", layouts.len(), constants.len());
}
