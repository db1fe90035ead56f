//! The exports table: which names a library exports, in which version node, and what stands behind
//! each.

use std::{collections::HashMap, fmt::Write as _, fs};

/// A version node and the node it inherits from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// For example `IBVERBS_1.1`.
    pub name: String,
    /// The older node this one extends, if any.
    pub parent: Option<String>,
}

/// One exported name in one version node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The C name.
    pub symbol: String,
    /// Name of the version node.
    pub node: String,
    /// Whether a program linked without asking for a version gets this one (`@@` rather than `@`).
    pub default: bool,
    /// `impl`, `bool`, or the name of a stub.
    pub kind: String,
}

impl Export {
    /// Whether the name is a one-byte variable rather than a function.
    pub fn is_data(&self) -> bool {
        self.kind == "bool"
    }

    /// The Rust function that the trampoline jumps to.
    fn target(&self) -> String {
        match self.kind.as_str() {
            "impl" => format!("crate::api::{}", self.symbol),
            stub => format!("crate::stubs::{stub}"),
        }
    }
}

/// A parsed exports table. `exports.txt` of the libverbs crate describes the format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Version nodes, oldest first.
    pub nodes: Vec<Node>,
    /// All exports.
    pub exports: Vec<Export>,
}

impl Table {
    /// Reads the table at `path`, relative to the package, and asks cargo to watch it.
    ///
    /// # Panics
    /// With file and line when the table cannot be read or has a mistake.
    pub fn load(path: &str) -> Self {
        println!("cargo::rerun-if-changed={path}");
        let text =
            fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
        Self::parse(&text).unwrap_or_else(|error| panic!("{path}:{error}"))
    }

    /// Parses a table.
    ///
    /// # Errors
    /// `LINE: what is wrong` for the first line that is not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut table = Self::default();
        let mut groups = HashMap::new();
        for (index, line) in text.lines().enumerate() {
            let words: Vec<&str> =
                line.split('#').next().unwrap_or_default().split_whitespace().collect();
            table
                .parse_line(&words, &mut groups)
                .map_err(|error| format!("{}: {error}", index + 1))?;
        }
        Ok(table)
    }

    fn parse_line<'t>(
        &mut self,
        words: &[&'t str],
        groups: &mut HashMap<&'t str, Vec<&'t str>>,
    ) -> Result<(), String> {
        match *words {
            [] => Ok(()),
            ["node", name] => self.add_node(name, None),
            ["node", name, parent] => self.add_node(name, Some(parent)),
            ["group", name, ref nodes @ ..] => {
                groups.insert(name, nodes.to_vec());
                Ok(())
            }
            [symbol, node, kind] => match groups.get(node) {
                Some(nodes) => {
                    nodes.iter().try_for_each(|node| self.add_export(symbol, node, kind))
                }
                None => self.add_export(symbol, node, kind),
            },
            _ => Err("expected `SYMBOL NODE KIND`, `node NAME [PARENT]` or `group NAME NODE...`"
                .to_owned()),
        }
    }

    fn add_node(&mut self, name: &str, parent: Option<&str>) -> Result<(), String> {
        if let Some(parent) = parent {
            self.require_node(parent)?;
        }
        self.nodes.push(Node { name: name.to_owned(), parent: parent.map(str::to_owned) });
        Ok(())
    }

    fn add_export(&mut self, symbol: &str, node: &str, kind: &str) -> Result<(), String> {
        let (node, default) = match node.strip_suffix('@') {
            Some(node) => (node, false),
            None => (node, true),
        };
        self.require_node(node)?;
        if self
            .exports
            .iter()
            .any(|old| old.symbol == symbol && (old.node == node || (default && old.default)))
        {
            return Err(format!("{symbol} is in {node} already, or has a default version already"));
        }
        self.exports.push(Export {
            symbol: symbol.to_owned(),
            node: node.to_owned(),
            default,
            kind: kind.to_owned(),
        });
        Ok(())
    }

    fn require_node(&self, name: &str) -> Result<(), String> {
        if self.nodes.iter().any(|node| node.name == name) {
            Ok(())
        } else {
            Err(format!("version node {name} is not declared above"))
        }
    }

    /// The linker's version script: every node with the names it defines.
    pub fn version_script(&self) -> String {
        let mut text = String::new();
        for node in &self.nodes {
            writeln!(text, "{} {{", node.name).expect("writing to a string");
            let mut names =
                self.exports.iter().filter(|export| export.node == node.name).peekable();
            if names.peek().is_some() {
                text.push_str("  global:\n");
            }
            for export in names {
                writeln!(text, "    {};", export.symbol).expect("writing to a string");
            }
            if node.parent.is_none() {
                text.push_str("  local: *;\n");
            }
            let parent = node.parent.as_deref().unwrap_or_default();
            writeln!(text, "}}{}{parent};", if parent.is_empty() { "" } else { " " })
                .expect("writing to a string");
        }
        text
    }

    /// Rust source with one assembly trampoline per export. `label_prefix` keeps the labels of two
    /// libraries apart.
    ///
    /// # Panics
    /// When `arch` has no known jump instruction.
    pub fn trampolines(&self, arch: &str, label_prefix: &str) -> String {
        let jump = match arch {
            "x86_64" => "jmp",
            "aarch64" => "b",
            other => panic!("no trampoline is written for {other}; x86_64 and aarch64 are known"),
        };
        self.exports.iter().enumerate().fold(String::new(), |text, (index, export)| {
            text + &trampoline(export, jump, &format!("{label_prefix}{index}"))
        })
    }
}

/// A `global_asm!` that defines `label` and gives it the export's name and version in its place.
fn trampoline(export: &Export, jump: &str, label: &str) -> String {
    let Export { symbol, node, .. } = export;
    let at = if export.default { "@@" } else { "@" };
    let (section, flags, kind, body, operand) = if export.is_data() {
        (".bss", "\"aw\",%nobits", "object", ".zero 1".to_owned(), String::new())
    } else {
        let operand = format!("    f = sym {},\n", export.target());
        (".text", "\"ax\",%progbits", "function", format!("{jump} {{f}}"), operand)
    };
    let lines = [
        format!(".pushsection {section}.{label},{flags}"),
        ".p2align 4".to_owned(),
        format!(".globl {label}"),
        format!(".type {label},%{kind}"),
        format!("{label}: {body}"),
        format!(".size {label}, . - {label}"),
        format!(".symver {label},{symbol}{at}{node},remove"),
        ".popsection".to_owned(),
    ];
    let quoted: String = lines.iter().map(|line| format!("    {line:?},\n")).collect();
    format!("::core::arch::global_asm!(\n{quoted}{operand});\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
# comment
node A_1
node A_2 A_1
group PRIVATE P_1 P_2@
";

    #[test]
    fn default_and_hidden_versions_of_one_name_become_two_trampolines() {
        let table =
            Table::parse("node A_1\nnode A_2 A_1\nopen A_2 impl\nopen A_1@ err_ptr # old\n")
                .unwrap();
        let source = table.trampolines("x86_64", "__t_v");
        assert!(source.contains(".symver __t_v0,open@@A_2,remove"), "{source}");
        assert!(source.contains("f = sym crate::api::open"), "{source}");
        assert!(source.contains(".symver __t_v1,open@A_1,remove"), "{source}");
        assert!(source.contains("f = sym crate::stubs::err_ptr"), "{source}");
        assert!(table.trampolines("aarch64", "__t_v").contains("__t_v0: b {f}"));
        assert_eq!(
            table.version_script(),
            "A_1 {\n  global:\n    open;\n  local: *;\n};\nA_2 {\n  global:\n    open;\n} A_1;\n"
        );
    }

    #[test]
    fn a_group_exports_a_name_in_each_of_its_nodes() {
        let table = Table::parse("node P_1\nnode P_2\ngroup G P_1 P_2@\nflag G bool\n").unwrap();
        let pairs: Vec<_> =
            table.exports.iter().map(|e| (e.node.as_str(), e.default, e.is_data())).collect();
        assert_eq!(pairs, [("P_1", true, true), ("P_2", false, true)]);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (line, message) in [
            ("open A_3 impl", "5: version node A_3"),
            ("node A_4 A_3", "5: version node A_3"),
            ("open A_1", "5: expected"),
            ("open PRIVATE impl", "5: version node P_1"),
            ("open A_1 impl\nopen A_1@ impl", "6: open is in A_1"),
            ("open A_1 impl\nopen A_2 impl", "6: open is in A_2"),
        ] {
            let error = Table::parse(&format!("{SAMPLE}{line}\n")).unwrap_err();
            assert!(error.starts_with(message), "{line}: {error}");
        }
    }
}
