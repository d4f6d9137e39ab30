//! The variables by which a launcher tells a process where it is.

use std::str::FromStr;

use crate::Error;

/// Most processes of a job.
pub const SIZE_MAX: u32 = 1 << 20;

const FD: &str = "PMI_FD";
const PORT: &str = "PMI_PORT";
const RANK: &str = "PMI_RANK";
const SIZE: &str = "PMI_SIZE";
const ID: &str = "PMI_ID";
const NAMESPACE_OF_PMIX: &str = "PMIX_NAMESPACE";
const RANK_OF_PMIX: &str = "PMIX_RANK";

/// The way to the launcher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LauncherAddress {
    /// `PMI_FD`: an inherited descriptor of a stream socket.
    Descriptor {
        /// The number of the descriptor.
        number: i32,
        /// `PMI_RANK`.
        rank: u32,
        /// `PMI_SIZE`.
        size: u32,
    },
    /// `PMI_PORT`: a TCP port. The launcher tells rank and size.
    Port {
        /// Host name or address.
        host: String,
        /// Port.
        port: u16,
        /// `PMI_ID`, by which the launcher knows the process.
        id: u32,
    },
}

/// How this process was started, by its variables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Environment {
    /// By no launcher: a job of one process.
    Alone,
    /// By a launcher with PMI-1 or PMI-2.
    Launched(LauncherAddress),
    /// By a launcher with PMIx, whose library reads the variables itself.
    LaunchedByPmix,
}

impl Environment {
    /// Reads the variables of this process.
    ///
    /// # Errors
    /// [`Error::Environment`], [`Error::Incomplete`].
    pub fn of_process() -> Result<Self, Error> {
        Self::read(|name| std::env::var(name).ok())
    }

    /// Reads the variables by a function that gives the value of one. Where a launcher serves PMI
    /// and PMIx, PMI counts, which needs no library.
    ///
    /// # Errors
    /// [`Error::Environment`], [`Error::Incomplete`].
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let needed = |name: &'static str, by: &'static str| {
            variable(name).ok_or(Error::Incomplete { present: by, absent: name })
        };
        if let Some(number) = variable(FD) {
            let number = parse(FD, &number, "is no number of a descriptor", |number| *number >= 0)?;
            let in_range = |size: &u32| (1..=SIZE_MAX).contains(size);
            let size = parse(SIZE, &needed(SIZE, FD)?, "is no number of processes", in_range)?;
            let below = |rank: &u32| *rank < size;
            let rank = parse(RANK, &needed(RANK, FD)?, "is no rank below PMI_SIZE", below)?;
            return Ok(Self::Launched(LauncherAddress::Descriptor { number, rank, size }));
        }
        let Some(place) = variable(PORT) else {
            let has_pmix =
                [NAMESPACE_OF_PMIX, RANK_OF_PMIX].iter().all(|name| variable(name).is_some());
            return Ok(if has_pmix { Self::LaunchedByPmix } else { Self::Alone });
        };
        let fault = || Error::Environment {
            variable: PORT,
            value: place.clone(),
            problem: "is not HOST:PORT",
        };
        let (host, port) = place.rsplit_once(':').ok_or_else(fault)?;
        let port = port.parse().map_err(|_| fault())?;
        if host.is_empty() || port == 0 {
            return Err(fault());
        }
        let id = variable(ID).or_else(|| variable(RANK));
        let id = id.ok_or(Error::Incomplete { present: PORT, absent: ID })?;
        let id = parse(ID, &id, "is no number below 1048576", |id| *id < SIZE_MAX)?;
        Ok(Self::Launched(LauncherAddress::Port { host: host.to_owned(), port, id }))
    }
}

fn parse<T: FromStr>(
    variable: &'static str,
    text: &str,
    problem: &'static str,
    is_good: impl Fn(&T) -> bool,
) -> Result<T, Error> {
    text.parse().ok().filter(is_good).ok_or_else(|| Error::Environment {
        variable,
        value: text.to_owned(),
        problem,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, String> {
        let variable = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        Environment::read(variable).map_err(|error| error.to_string())
    }

    #[test]
    fn without_a_launcher_the_process_is_alone() {
        assert_eq!(read(&[("PMI_RANK", "3")]), Ok(Environment::Alone));
    }

    #[test]
    fn a_descriptor_comes_with_rank_and_size() {
        let place = LauncherAddress::Descriptor { number: 7, rank: 1, size: 2 };
        let variables = [("PMI_FD", "7"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        assert_eq!(read(&variables), Ok(Environment::Launched(place)));
    }

    #[test]
    fn pmix_counts_where_there_is_no_pmi() {
        let pmix = [("PMIX_NAMESPACE", "job"), ("PMIX_RANK", "1")];
        assert_eq!(read(&pmix), Ok(Environment::LaunchedByPmix));
        assert_eq!(read(&pmix[..1]), Ok(Environment::Alone));
        let both = [pmix[0], pmix[1], ("PMI_FD", "7"), ("PMI_RANK", "0"), ("PMI_SIZE", "1")];
        assert!(matches!(read(&both), Ok(Environment::Launched(_))));
    }

    #[test]
    fn a_port_comes_with_an_id() {
        let place = LauncherAddress::Port { host: "n0".to_owned(), port: 4000, id: 5 };
        let variables = [("PMI_PORT", "n0:4000"), ("PMI_ID", "5")];
        assert_eq!(read(&variables), Ok(Environment::Launched(place)));
    }

    #[test]
    fn errors_name_the_variable_and_its_value() {
        let error = read(&[("PMI_FD", "7"), ("PMI_RANK", "2"), ("PMI_SIZE", "2")]).unwrap_err();
        assert!(error.starts_with("PMI_RANK=2 is no rank below PMI_SIZE"), "{error}");
        let error = read(&[("PMI_FD", "7"), ("PMI_RANK", "2")]).unwrap_err();
        assert!(error.contains("PMI_FD but not PMI_SIZE"), "{error}");
        let error = read(&[("PMI_FD", "-1"), ("PMI_SIZE", "2")]).unwrap_err();
        assert!(error.starts_with("PMI_FD=-1"), "{error}");
        let error = read(&[("PMI_PORT", "n0"), ("PMI_ID", "0")]).unwrap_err();
        assert!(error.starts_with("PMI_PORT=n0"), "{error}");
    }
}
