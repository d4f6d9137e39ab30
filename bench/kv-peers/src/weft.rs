use std::path::Path;

use weft_kv::engine::{Engine, Options};
use weft_kv::store::{Change, Store};

use crate::Sizes;
use crate::run::Target;

pub struct Weft(Engine);

impl Weft {
    pub fn open(dir: &Path, sizes: &Sizes) -> Self {
        let options = Options {
            level0_bytes: sizes.level0 as usize,
            cache_bytes: sizes.cache,
            ..Options::default()
        };
        Self(Engine::open(dir, options).expect("a store"))
    }
}

impl Target for Weft {
    fn get(&self, key: &[u8]) -> Result<Option<usize>, String> {
        let value = self.0.get(key).map_err(|error| error.to_string())?;
        Ok(value.map(|value| value.len()))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let change = Change::Put { key: key.to_vec(), value: value.to_vec() };
        let lsn = self.0.write(vec![change]).map_err(|error| error.to_string())?;
        self.0.commit(lsn).map_err(|error| error.to_string())
    }

    fn settle(&self) -> Result<(), String> {
        self.0.settle().map_err(|error| error.to_string())?;
        if std::env::var_os("KV_STATISTICS").is_some() {
            eprintln!("{:?}", self.0.statistics());
        }
        Ok(())
    }
}
