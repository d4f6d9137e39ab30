//! The content of `weft top`, and the changes that its keys make.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use weftd::{Status, Users};

use super::Pair;
use super::history::History;
use super::sheet::{Sheet, View};

/// The step after a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Continue,
    Quit,
}

/// The state.
pub struct State {
    users: Users,
    before: Option<Status>,
    pub now: Option<Status>,
    /// Why there is no new status.
    pub failure: Option<String>,
    pub history: History,
    pub view: View,
    /// The column by which each view is sorted, where the user chose one.
    columns: [Option<usize>; View::ALL.len()],
    pub reversed: bool,
    pub filter: String,
    pub is_typing: bool,
    pub chosen: usize,
    pub shows_detail: bool,
    pub is_paused: bool,
}

impl State {
    pub fn new(users: Users) -> Self {
        Self {
            users,
            before: None,
            now: None,
            failure: None,
            history: History::default(),
            view: View::Connections,
            columns: [None; View::ALL.len()],
            reversed: false,
            filter: String::new(),
            is_typing: false,
            chosen: 0,
            shows_detail: false,
            is_paused: false,
        }
    }

    /// Takes a new status, or the reason why there is none.
    pub fn take(&mut self, status: Result<Status, String>) {
        match status {
            Ok(_) if self.is_paused => self.failure = None,
            Ok(status) => {
                self.failure = None;
                self.before = self.now.take();
                let pair = Pair { before: self.before.as_ref(), now: &status };
                self.history.add(&pair);
                self.now = Some(status);
            }
            Err(why) => self.failure = Some(why),
        }
    }

    /// The table of the view, sorted and filtered; `None` before the first status.
    pub fn sheet(&self) -> Option<Sheet> {
        let pair = Pair { before: self.before.as_ref(), now: self.now.as_ref()? };
        let mut sheet = Sheet::of(self.view, &pair, &self.users);
        sheet.arrange(&self.filter, self.column().unwrap_or(sheet.first), self.reversed);
        Some(sheet)
    }

    /// The column that the user chose.
    pub fn column(&self) -> Option<usize> {
        self.columns[self.view as usize]
    }

    fn show(&mut self, place: usize) {
        self.view = View::ALL[place % View::ALL.len()];
        (self.chosen, self.shows_detail) = (0, false);
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> Next {
        if key.kind == KeyEventKind::Release {
            return Next::Continue;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && key.code == KeyCode::Char('c') {
            return Next::Quit;
        }
        if self.is_typing {
            match key.code {
                KeyCode::Esc => (self.is_typing, self.filter) = (false, String::new()),
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(one) => self.filter.push(one),
                _ => {}
            }
            return Next::Continue;
        }
        let place = View::ALL.iter().position(|view| *view == self.view).unwrap_or(0);
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Esc if self.shows_detail => self.shows_detail = false,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Tab | KeyCode::Right => self.show(place + 1),
            KeyCode::BackTab | KeyCode::Left => self.show(place + View::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='9') => self.show((digit as usize) - ('1' as usize)),
            KeyCode::Char('s') => {
                let columns = self.sheet().map_or(1, |sheet| sheet.columns.len());
                let first = self.sheet().map_or(0, |sheet| sheet.first);
                let column = self.column().unwrap_or(first);
                self.columns[self.view as usize] = Some((column + 1) % columns);
            }
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Enter => self.shows_detail = !self.shows_detail,
            KeyCode::Down | KeyCode::Char('j') => self.chosen = self.chosen.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::PageDown => self.chosen = self.chosen.saturating_add(10),
            KeyCode::PageUp => self.chosen = self.chosen.saturating_sub(10),
            KeyCode::Home => self.chosen = 0,
            _ => {}
        }
        Next::Continue
    }
}
