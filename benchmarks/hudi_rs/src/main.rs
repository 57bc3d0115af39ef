//! hudi-rs as an arm of the benchmarks: it obeys one line of JSON after the other.
//!
//! | "do" | also given | what |
//! | --- | --- | --- |
//! | create | path, key, partition, ordering, type, metadata, index, stats, options | make a table |
//! | open | path | open a table that is there |
//! | take | file | read a Parquet file into memory |
//! | append, upsert | | write the rows that were taken |
//! | delete | filter | delete what the filter matches |
//! | read | file | open the table again, and write its snapshot into a Parquet file |
//!
//! Each is answered with `{}` or `{"error": "..."}`.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead};

use arrow_array::RecordBatch;
use hudi::config::table::TableTypeValue;
use hudi::table::{ReadOptions, Table};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::ArrowWriter;
use serde_json::{json, Value};

type Outcome<T> = Result<T, Box<dyn Error>>;

#[derive(Default)]
struct Arm {
    table: Option<Table>,
    rows: Vec<RecordBatch>,
}

impl Arm {
    async fn obey(&mut self, asked: &Value) -> Outcome<()> {
        match text(asked, "do") {
            "create" => self.table = Some(create(asked).await?),
            "open" => self.table = Some(Table::new(text(asked, "path")).await?),
            "take" => self.rows = rows_of(text(asked, "file"))?,
            "append" => {
                let rows = std::mem::take(&mut self.rows);
                self.table()?.append(rows).await?;
            }
            "upsert" => {
                let rows = std::mem::take(&mut self.rows);
                self.table()?.upsert(rows).await?;
            }
            "delete" => {
                self.table()?.delete(text(asked, "filter")).await?;
            }
            "read" => read(self.table()?, text(asked, "file")).await?,
            other => return Err(format!("unknown: {other}").into()),
        }
        Ok(())
    }

    fn table(&mut self) -> Outcome<&mut Table> {
        self.table.as_mut().ok_or_else(|| "no table".into())
    }
}

fn text<'a>(asked: &'a Value, name: &str) -> &'a str {
    asked[name].as_str().unwrap_or_default()
}

async fn create(asked: &Value) -> Outcome<Table> {
    let logs = text(asked, "type") == "MERGE_ON_READ";
    let on = |name: &str| asked[name].as_bool().unwrap_or(true);
    let mut made = Table::create(text(asked, "path"))
        .with_table_name("table")
        .with_table_type(if logs { TableTypeValue::MergeOnRead } else { TableTypeValue::CopyOnWrite })
        .with_record_key_fields([text(asked, "key")])
        .with_partition_fields([text(asked, "partition")])
        .with_ordering_fields([text(asked, "ordering")])
        .with_metadata_table_enabled(on("metadata"))
        .with_record_index_enabled(on("metadata") && on("index"))
        .with_column_stats_enabled(on("metadata") && on("stats"));
    for (name, value) in asked["options"].as_object().into_iter().flatten() {
        made = made.with_option(name, value.as_str().unwrap_or_default());
    }
    Ok(made.create().await?)
}

/// The rows of a Parquet file, as one batch.
fn rows_of(file: &str) -> Outcome<Vec<RecordBatch>> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(file)?)?;
    let count = builder.metadata().file_metadata().num_rows().max(1) as usize;
    Ok(builder.with_batch_size(count).build()?.collect::<Result<_, _>>()?)
}

async fn read(table: &Table, file: &str) -> Outcome<()> {
    let table = Table::new(table.base_url().as_str()).await?;
    let batches = table.read(&ReadOptions::new()).await?;
    let first = batches.first().ok_or("the snapshot is empty")?;
    let mut writer = ArrowWriter::try_new(File::create(file)?, first.schema(), None)?;
    for batch in &batches {
        writer.write(batch)?;
    }
    writer.close()?;
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut arm = Arm::default();
    for line in io::stdin().lock().lines() {
        let asked: Value = serde_json::from_str(&line?)?;
        let answer = match arm.obey(&asked).await {
            Ok(()) => json!({}),
            Err(error) => json!({ "error": error.to_string() }),
        };
        println!("{answer}");
    }
    Ok(())
}
