//! The users who may offer a service, and to whom: the value of `daemon.services`.
//!
//! A rule is `OWNER:NAME:USERS`. `OWNER` is the number of the user who may offer `NAME`, or `any`;
//! a name that ends with `*` stands for all that begin so. `USERS` may use the service: numbers
//! with commas between them, or `any`. Blanks separate rules.
//!
//! # Invariants
//! - A name that rules give to users is offered by these users and by root alone, so that nobody
//!   can pass for them. A name without a rule is free.
//! - A service reaches its owner and root, and those whom a rule for its owner names.

/// Rules of one policy at most.
const RULES_MAX: usize = 1024;
/// The longest name of a service, bytes.
const NAME_BYTES_MAX: usize = 48;

/// The rules for services. Without a rule each service reaches its owner and root.
///
/// ```
/// use weft_options::ServicePolicy;
///
/// let policy = ServicePolicy::parse("1000:kv:any 1000:disk-*:1001,1002").unwrap();
/// assert!(policy.may_offer(1000, "kv") && !policy.may_offer(1003, "kv"));
/// assert!(policy.may_use(1003, 1000, "kv") && !policy.may_use(1003, 1000, "disk-1"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServicePolicy {
    rules: Vec<Rule>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Rule {
    owner: Users,
    name: String,
    /// The rule is for all names that begin with `name`.
    is_prefix: bool,
    users: Users,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Users {
    Any,
    These(Vec<u32>),
}

impl Users {
    /// `None` when the text is not a list of users of at most `most`.
    fn parse(text: &str, most: usize) -> Option<Self> {
        if text == "any" {
            return Some(Self::Any);
        }
        let users: Option<Vec<u32>> = text.split(',').map(|user| user.parse().ok()).collect();
        users.filter(|users| users.len() <= most).map(Self::These)
    }

    fn contain(&self, user: u32) -> bool {
        match self {
            Self::Any => true,
            Self::These(users) => users.contains(&user),
        }
    }
}

impl Rule {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (owner, name, users) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let prefix = name.strip_suffix('*');
        let is_prefix = prefix.is_some();
        let name = prefix.unwrap_or(name);
        let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        let is_name = name.as_bytes().iter().all(is_allowed) && name.len() <= NAME_BYTES_MAX;
        if !is_name || (name.is_empty() && !is_prefix) {
            return None;
        }
        let (owner, users) = (Users::parse(owner, 1)?, Users::parse(users, RULES_MAX)?);
        Some(Self { owner, name: name.to_owned(), is_prefix, users })
    }

    fn is_for(&self, name: &str) -> bool {
        if self.is_prefix { name.starts_with(&self.name) } else { name == self.name }
    }
}

impl ServicePolicy {
    /// The policy with these rules; `None` when the text is not a list of rules.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let rules: Option<Vec<Rule>> = text.split_ascii_whitespace().map(Rule::parse).collect();
        rules.filter(|rules| rules.len() <= RULES_MAX).map(|rules| Self { rules })
    }

    /// Whether `user` may offer a service of this name.
    #[must_use]
    pub fn may_offer(&self, user: u32, name: &str) -> bool {
        let mut of_name = self.of(name).peekable();
        user == 0 || of_name.peek().is_none() || of_name.any(|rule| rule.owner.contain(user))
    }

    /// Whether `user` may use the service of this name that `owner` offers.
    #[must_use]
    pub fn may_use(&self, user: u32, owner: u32, name: &str) -> bool {
        let names = |rule: &Rule| rule.owner.contain(owner) && rule.users.contain(user);
        user == owner || user == 0 || self.of(name).any(names)
    }

    fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Rule> {
        self.rules.iter().filter(move |rule| rule.is_for(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> ServicePolicy {
        ServicePolicy::parse(text).expect("rules")
    }

    #[test]
    fn without_rules_a_service_reaches_its_owner_and_root() {
        let none = policy("");
        assert_eq!(none, ServicePolicy::default());
        assert!(none.may_offer(1000, "kv"));
        assert!(none.may_use(1000, 1000, "kv") && none.may_use(0, 1000, "kv"));
        assert!(!none.may_use(1001, 1000, "kv") && !none.may_use(1001, 0, "kv"));
    }

    #[test]
    fn a_rule_reserves_its_name_and_says_who_may_use_it() {
        let rules = policy("1000:kv:any\n 1001:kv:1002,1003 any:job-*:1004 0:nvme:any");
        assert!(rules.may_offer(1000, "kv") && rules.may_offer(1001, "kv"));
        assert!(!rules.may_offer(1002, "kv"), "a user of the service is not its owner");
        assert!(rules.may_offer(0, "kv"), "root may do all");
        assert!(rules.may_offer(1002, "kv2") && rules.may_offer(1002, "job-7"));
        assert!(!rules.may_offer(1002, "nvme"));
        assert!(rules.may_use(77, 1000, "kv"));
        assert!(rules.may_use(1003, 1001, "kv") && !rules.may_use(77, 1001, "kv"));
        assert!(!rules.may_use(77, 0, "kv"), "the rules are for the services of their owners");
        assert!(rules.may_use(1004, 9, "job-7") && !rules.may_use(1005, 9, "job-7"));
        assert!(rules.may_use(77, 0, "nvme") && !rules.may_use(77, 5, "nvme"));
        assert!(!rules.may_use(1004, 9, "job"));
    }

    #[test]
    fn what_is_not_a_rule_is_refused() {
        let long = format!("1:{}:any", "x".repeat(NAME_BYTES_MAX + 1));
        let many = "1:a:2 ".repeat(RULES_MAX + 1);
        for text in [
            "kv",
            "1000:kv",
            "1000:kv:any:more",
            ":kv:any",
            "1000::any",
            "1000:kv:",
            "1000:k*v:any",
            "1000:k v:any",
            "1,2:kv:any",
            "root:kv:any",
            "-1:kv:any",
            "1:kv:4294967296",
            "1:kv:1,,2",
            &long,
            &many,
        ] {
            assert_eq!(ServicePolicy::parse(text), None, "{text:?}");
        }
        assert!(ServicePolicy::parse("any:*:any").is_some());
    }
}
