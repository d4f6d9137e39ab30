//! Users and groups who are allowed something: the value of `daemon.allow`.
//!
//! The text is numbers of users, and of groups with an `@` before them, with commas between; or
//! `any`. Without text it is nobody.

/// Users and groups of one list at most.
const MEMBERS_MAX: usize = 1024;

/// Some users and groups, by their numbers.
///
/// ```
/// use weft_options::People;
///
/// let people = People::parse("1000,@998").unwrap();
/// assert!(people.contain(1000, &[]) && people.contain(7, &[7, 998]));
/// assert!(!people.contain(998, &[1000]));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum People {
    /// All.
    Any,
    /// Those who are listed.
    These {
        /// Numbers of users.
        users: Vec<u32>,
        /// Numbers of groups.
        groups: Vec<u32>,
    },
}

impl People {
    /// The people in a text; `None` when it is not such a list.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (mut users, mut groups) = (Vec::new(), Vec::new());
        match text.trim() {
            "" => return Some(Self::These { users, groups }),
            "any" => return Some(Self::Any),
            list => {
                for member in list.split(',').map(str::trim) {
                    match member.strip_prefix('@') {
                        Some(group) => groups.push(group.parse().ok()?),
                        None => users.push(member.parse().ok()?),
                    }
                }
            }
        }
        (users.len() + groups.len() <= MEMBERS_MAX).then_some(Self::These { users, groups })
    }

    /// Whether a user, who is in these groups, is among the people.
    #[must_use]
    pub fn contain(&self, user: u32, of_groups: &[u32]) -> bool {
        match self {
            Self::Any => true,
            Self::These { users, groups } => {
                users.contains(&user) || of_groups.iter().any(|group| groups.contains(group))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_in_an_empty_list_and_all_are_in_any() {
        let nobody = People::parse("").expect("a list");
        assert!(!nobody.contain(0, &[0]));
        assert!(People::parse("any").expect("a list").contain(5, &[]));
    }

    #[test]
    fn users_and_groups_are_told_apart() {
        let people = People::parse("0, 1000,@4").expect("a list");
        assert!(people.contain(0, &[]) && people.contain(1000, &[9]) && people.contain(9, &[4]));
        assert!(!people.contain(4, &[0, 1000]));
    }

    #[test]
    fn other_texts_are_refused() {
        let many = vec!["1"; MEMBERS_MAX + 1].join(",");
        for text in ["root", "1,,2", "@", "@@1", "-1", "4294967296", "1 2", "any,1", &many] {
            assert_eq!(People::parse(text), None, "{text:?}");
        }
    }
}
