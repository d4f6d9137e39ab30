//! Names of users, as the file of this machine has them.

use std::collections::HashMap;

/// The names that are known.
#[derive(Clone, Debug, Default)]
pub struct Users {
    names: HashMap<u32, String>,
}

impl Users {
    /// Those of `/etc/passwd`; none where it cannot be read.
    pub fn read() -> Self {
        Self::parse(&std::fs::read_to_string("/etc/passwd").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let user = |line: &str| {
            let mut fields = line.split(':');
            let (name, number) = (fields.next()?, fields.nth(1)?);
            Some((number.parse().ok()?, name.to_owned()))
        };
        // The first name of a number counts, as for the C library.
        let names = text.lines().rev().filter_map(user).collect();
        Self { names }
    }

    /// A user's name, or the number where there is none.
    pub fn name(&self, uid: u32) -> String {
        self.names.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_of_a_number_counts_and_other_lines_do_not() {
        let users = Users::parse("root:x:0:0::/root:/bin/sh\ntoor:x:0:0::/:/x\nbad\nb:x:y:1\n");
        assert_eq!((users.name(0).as_str(), users.name(7).as_str()), ("root", "7"));
    }
}
