//! What a program that has Destage inside sees of this crate: one module.

#[test]
fn the_documentation_has_the_library_alone() {
    let source = include_str!("../src/lib.rs");
    let lines: Vec<&str> = source.lines().collect();
    let is_shown = |&(at, _): &(usize, &&str)| {
        lines[..at]
            .iter()
            .rev()
            .take_while(|line| line.starts_with(['#', '/']))
            .all(|line| *line != "#[doc(hidden)]")
    };
    let public = lines.iter().enumerate().filter(|(_, line)| line.starts_with("pub "));
    let shown: Vec<&str> = public.filter(is_shown).map(|(_, line)| *line).collect();
    assert_eq!(shown, ["pub mod store;"]);
}
