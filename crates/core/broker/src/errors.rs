//! The broker's errors as those of the calls that asked it.

use weft_fabric::{ConnectError, GrantError, GroupError, InviteError};

use crate::BrokerError;

impl From<BrokerError> for ConnectError {
    fn from(error: BrokerError) -> Self {
        Self::Broker { reason: error.to_string() }
    }
}

impl From<BrokerError> for GroupError {
    fn from(error: BrokerError) -> Self {
        Self::Broker { reason: error.to_string() }
    }
}

impl From<BrokerError> for InviteError {
    fn from(error: BrokerError) -> Self {
        Self::Broker { reason: error.to_string() }
    }
}

impl From<BrokerError> for GrantError {
    fn from(error: BrokerError) -> Self {
        Self::Broker { reason: error.to_string() }
    }
}
