//! A story of what happened between hosts, and the page that shows it.
//!
//! [`Story`] is data: [`html`] makes one file of it that a browser opens without server, network or
//! build. Whatever has packets and events to show fills in a story.
#![forbid(unsafe_code)]

mod fields;
mod model;
pub mod packet;

pub use fields::{Fields, hex, text};
pub use model::{
    Block, Field, Flight, Kind, Party, Point, Question, Rule, SCHEMA, Series, Step, Story,
};

const HTML: &str = include_str!("page/page.html");
const CSS: &str = include_str!("page/page.css");
const SCRIPTS: [&str; 3] =
    [include_str!("page/ladder.js"), include_str!("page/details.js"), include_str!("page/page.js")];

/// What a page has besides that a server keeps up to date.
const LIVE: &str = include_str!("page/live.js");

/// The story as one HTML file.
pub fn html(story: &Story) -> String {
    page(story, &SCRIPTS.concat(), "")
}

/// The beginning of a story, as a page that asks for the rest: `news?from=N` beside it is JSON with
/// `from`, `steps`, `first` (steps before it are to be forgotten), `hosts`, `series`, `begin`
/// (nanoseconds, where charts begin), `frames` and `left_out`.
pub fn live_html(story: &Story) -> String {
    page(story, &[&SCRIPTS.concat(), LIVE].concat(), "; connect-src 'self'")
}

fn page(story: &Story, script: &str, connect: &str) -> String {
    let title = escaped(&story.title);
    let parts = [("TITLE", title.as_str()), ("CSS", CSS), ("SCRIPT", script), ("CONNECT", connect)];
    let mut page = String::new();
    let mut rest = HTML;
    while let Some((before, after)) = rest.split_once("{{") {
        page.push_str(before);
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        match parts.iter().find(|(part, _)| *part == name) {
            Some((_, text)) => page.push_str(text),
            None => page.push_str(&data(story)),
        }
        rest = after;
    }
    page + rest
}

/// The story as JSON that no HTML parser takes for a tag or the end of a script.
fn data(story: &Story) -> String {
    // Only map keys that are no strings make this fail, and there are none.
    let json = serde_json::to_string(story).unwrap_or_default();
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// Text between tags.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NASTY: &str = "</script><script>alert(1)</script><!-- ]]> & \" ' {{TITLE}} \u{2028}";

    /// A story all of whose texts are nasty.
    fn nasty() -> Story {
        let text = || NASTY.to_owned();
        let rule = Rule { name: text(), what: text() };
        let field = Field { start: 0, len: 1, name: text(), value: text(), note: text() };
        let block = Block { title: text(), hex: "00ff".into(), fields: vec![field] };
        let mut step = Step::new(Kind::Packet, 0, 0, text());
        step.qp = Some(text());
        step.reason = Some(text());
        step.text = vec![text()];
        step.rules = vec![rule];
        step.blocks = vec![block];
        step.flight = Some(Flight {
            number: 1,
            to: 1,
            label: text(),
            arrivals: vec![5],
            fate: Some(text()),
            again: false,
        });
        let party = |name: &str| Party { name: name.into(), address: text() };
        Story {
            schema: SCHEMA,
            name: text(),
            title: text(),
            about: vec![text()],
            hosts: vec![party("A"), party(NASTY)],
            steps: vec![step],
            series: vec![Series {
                name: text(),
                group: text(),
                host: 0,
                points: vec![Point { at: 0, value: 1 }],
            }],
            question: Some(Question { ask: text(), answer: text() }),
            next: vec![text()],
        }
    }

    #[test]
    fn nothing_that_is_shown_can_end_the_script_or_begin_a_tag() {
        let page = html(&nasty());
        assert_eq!(page.matches("</script>").count(), 2, "the data's and the program's");
        assert_eq!(
            page.matches("alert(1)").count(),
            page.matches("script\\u003ealert(1)").count() + 1
        );
        assert!(page.contains("&lt;/script&gt;&lt;script&gt;alert(1)"), "the title");
        assert!(!page.contains("<!-- ]]"));
    }

    #[test]
    fn the_data_is_the_story() {
        let story = nasty();
        let page = html(&story);
        let (_, rest) = page.split_once("<script type=\"application/json\" id=\"story\">").unwrap();
        let (json, _) = rest.split_once("</script>").unwrap();
        assert_eq!(serde_json::from_str::<Story>(json).unwrap(), story);
    }

    #[test]
    fn the_page_needs_no_other_file_and_writes_no_markup() {
        let page = html(&nasty());
        for word in ["src=", "href=", "@import", "url(", "fetch(", "XMLHttpRequest"] {
            assert!(!page.contains(word), "{word}");
        }
        let live = live_html(&nasty());
        assert_eq!(live.matches("fetch(").count(), 1, "the news of its own server");
        assert!(live.contains("fetch(\"news?from=\" +"));
        let page = page + &live;
        for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!page.contains(word), "{word}");
        }
    }
}
