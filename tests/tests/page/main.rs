//! The page of `rnic lab --html` and of `rnic watch --web` in a real browser: it draws, clicks and
//! keys work, nothing is wider than a telephone, and what a story says is never taken for markup.

mod live;

use std::fs;

use anyhow::{Context, Result, ensure};
use system_tests::browser::{Browser, PROGRAM, Size};
use system_tests::dist::Dist;
use system_tests::lab::{Lab, Need};
use system_tests::paths::Scratch;
use system_tests::process::Cmd;

/// Notes errors from the beginning.
const WATCH: &str = "<script>window.faults = []; \
    window.addEventListener('error', (event) => window.faults.push(String(event.message))); \
    console.error = (...words) => window.faults.push(words.join(' '));</script>";
const DRIVER: &str = include_str!("driver.js");

const DESKTOP: Size = (1280, 900);
const TELEPHONE: Size = (390, 844);

/// The page of the story of a loss.
fn page(scratch: &Scratch) -> Result<String> {
    let file = scratch.join("loss.html");
    Cmd::new(Dist::get()?.bin("rnic")).args(["lab", "loss", "--html"]).arg(&file).check()?;
    fs::read_to_string(&file).context("the page")
}

/// Uses a page in windows of both sizes.
fn ensure_works(browser: &Browser, scratch: &Scratch, page: &str) -> Result<()> {
    let page = page.replacen("<head>", &format!("<head>{WATCH}"), 1);
    let page = page.replacen("</body>", &format!("<script>{DRIVER}</script></body>"), 1);
    let file = scratch.join("driven.html");
    fs::write(&file, page)?;
    for size in [DESKTOP, TELEPHONE] {
        let (dom, said) = browser.load(&file, size)?;
        verdict(&dom, &said, size)?;
    }
    Ok(())
}

/// What a driver found out, and the console.
fn verdict(dom: &str, said: &[String], size: Size) -> Result<()> {
    let verdict =
        dom.split_once("<pre id=\"verdict\">").and_then(|(_, rest)| rest.split('<').next());
    let verdict = verdict.context("the driver did not come to its end")?;
    ensure!(verdict == "all works", "at {size:?}: {verdict}");
    ensure!(said.is_empty(), "at {size:?} the console has {said:#?}");
    Ok(())
}

#[test]
fn the_page_draws_and_answers_clicks_and_keys() -> Result<()> {
    let name = "the_page_draws_and_answers_clicks_and_keys";
    let Some(lab) = Lab::open(name, Need::Nothing, &[PROGRAM])? else { return Ok(()) };
    let (browser, scratch) = (Browser::new(&lab.tools)?, Scratch::new("page")?);
    ensure_works(&browser, &scratch, &page(&scratch)?)
}

#[test]
fn texts_of_a_story_are_never_markup() -> Result<()> {
    let name = "texts_of_a_story_are_never_markup";
    let Some(lab) = Lab::open(name, Need::Nothing, &[PROGRAM])? else { return Ok(()) };
    let (browser, scratch) = (Browser::new(&lab.tools)?, Scratch::new("page")?);
    // As `rnic-page` writes it into the data.
    let nasty = "\\u003c/script\\u003e\\u003cscript\\u003ewindow.hacked = 1\\u003c/script\\u003e\
        \\u003cimg src=x onerror=window.hacked=1\\u003e";
    let page = page(&scratch)?;
    let texts = ["\"title\":\"", "\"name\":\"", "\"text\":[\"", "\"label\":\"", "\"note\":\""];
    let mut changed = page.clone();
    for text in texts {
        changed = changed.replace(text, &format!("{text}{nasty}"));
    }
    ensure!(changed.matches("hacked").count() > 100, "the page has texts");
    ensure_works(&browser, &scratch, &changed)
}
