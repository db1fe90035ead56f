use super::super::script::model;
use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::path::Path;

fn drawn((width, height): (u16, u16), model: &Model, view: &View, signs: Signs) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, view, signs)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(width.into()).map(|row| {
        let text: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.trim_end().to_owned() + "\n"
    });
    rows.collect()
}

fn after(keys: &[KeyCode], model: &Model) -> View {
    let mut view = View::default();
    for code in keys {
        view.key(KeyEvent::new(*code, KeyModifiers::NONE), model);
    }
    view
}

/// Compares with the picture in a file. `RNIC_GOLDEN=write` writes it anew.
fn ensure_is(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/watch/draw/tests").join(name);
    if std::env::var_os("RNIC_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(&path, text).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap();
    assert!(text == wanted, "{name} is now:\n{text}");
}

#[test]
fn a_small_screen_shows_the_list_and_opens_a_queue_pair() {
    let model = model();
    let list = drawn((80, 24), &model, &View::default(), Signs::UNICODE);
    ensure_is("list-80x24.txt", &list);
    let open = drawn((80, 24), &model, &after(&[KeyCode::Enter], &model), Signs::UNICODE);
    ensure_is("open-80x24.txt", &open);
    let help = drawn((80, 24), &model, &after(&[KeyCode::Char('?')], &model), Signs::UNICODE);
    ensure_is("help-80x24.txt", &help);
}

#[test]
fn a_large_screen_shows_all_at_once() {
    let model = model();
    let view = after(&[KeyCode::Char('e')], &model);
    ensure_is("200x50.txt", &drawn((200, 50), &model, &view, Signs::UNICODE));
}

#[test]
fn a_terminal_without_unicode_gets_ascii() {
    let model = model();
    for keys in [&[][..], &[KeyCode::Enter], &[KeyCode::Char('?')]] {
        let text = drawn((80, 24), &model, &after(keys, &model), Signs::ASCII);
        assert!(text.is_ascii(), "{text}");
    }
}

#[test]
fn every_size_can_be_drawn() {
    let models = [Model::default(), model()];
    for (width, height) in [(1, 1), (3, 2), (10, 5), (20, 40), (79, 8), (119, 60), (400, 100)] {
        for model in &models {
            for keys in [&[][..], &[KeyCode::Enter], &[KeyCode::Char('?')], &[KeyCode::PageUp; 9]] {
                drawn((width, height), model, &after(keys, model), Signs::UNICODE);
            }
        }
    }
}
