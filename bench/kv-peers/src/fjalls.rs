use std::path::Path;
use std::sync::Arc;

use fjall::compaction::Leveled;
use fjall::config::{BlockSizePolicy, BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions};

use crate::Sizes;
use crate::run::Target;

pub struct Fjall {
    database: Database,
    keyspace: Keyspace,
}

impl Fjall {
    pub fn open(dir: &Path, sizes: &Sizes, separated: bool) -> Self {
        let database = Database::builder(dir)
            .cache_size(sizes.cache)
            .worker_threads(2)
            .open()
            .expect("a database");
        let filter = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0));
        let leveled = Leveled::default().with_table_target_size(4 << 20);
        let mut options = KeyspaceCreateOptions::default()
            .max_memtable_size(sizes.level0)
            .data_block_size_policy(BlockSizePolicy::all(4096))
            .filter_policy(FilterPolicy::all(filter))
            .compaction_strategy(Arc::new(leveled));
        if separated {
            let blobs = KvSeparationOptions::default().separation_threshold(64);
            options = options.with_kv_separation(Some(blobs));
        }
        let keyspace = database.keyspace("kv", || options).expect("a keyspace");
        Self { database, keyspace }
    }
}

impl Target for Fjall {
    fn get(&self, key: &[u8]) -> Result<Option<usize>, String> {
        let value = self.keyspace.get(key).map_err(|error| error.to_string())?;
        Ok(value.map(|value| value.len()))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.keyspace.insert(key, value).map_err(|error| error.to_string())
    }

    fn settle(&self) -> Result<(), String> {
        let mut calm = 0;
        while calm < 5 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let is_busy = self.database.outstanding_flushes() > 0
                || self.database.active_compactions() > 0;
            calm = if is_busy { 0 } else { calm + 1 };
        }
        Ok(())
    }
}
