//! Side-by-side benchmarks: one machine, one run, one client, everything through a socket.
//!
//! `sim` runs simulators over traces, `loop` closes it from a recording to advice and back, and `growth` measures Destage alone
//! at sizes that grow. `data`, `block`, `mount`, `tpcc`, `ycsb`, `bg`, `replicas` and `peers` start Destage and its peers, run the
//! sides of each comparison in turn, and print the ratios pair by pair with the servers' CPU time per request. `load`, `proxy`
//! and `device` are their load generator, their delaying proxy and their modelled disk, on their own.

mod args;
mod behind;
mod bench;
mod bg;
mod block;
mod cases;
mod cli;
mod command;
mod connect;
mod control;
mod cpu;
mod data;
mod device;
mod drive;
mod figure;
mod fio;
mod growth;
mod keys;
mod load;
mod looped;
mod machine;
mod mount;
mod origins;
mod peers;
mod place;
mod proxy;
mod redis_benchmark;
mod replicas;
mod report;
mod servers;
mod sim;
mod stats;
mod tpcc;
mod wire;
mod ycsb;

use std::net::TcpListener;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use destage_runtime::exit;

use crate::cli::{Cli, Command, LoadArgs, ProxyArgs};
use crate::load::{Bound, Load};
use crate::tpcc::TpccArgs;

/// Failures end the program with their message, so no caller tells them apart.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Data(arguments) => data::run(&arguments),
        Command::Block(arguments) => block::run(&arguments),
        Command::Mount(arguments) => mount::run(&arguments),
        Command::Device(arguments) => device::run(&arguments),
        Command::Numbered(arguments) => peers::write_numbered(&arguments),
        Command::Tpcc(arguments) => run_tpcc(&arguments),
        Command::Bg(arguments) => bg::run(&arguments),
        Command::Ycsb(arguments) => ycsb::run(&arguments),
        Command::Replicas(arguments) => replicas::run(&arguments),
        Command::Peers(arguments) => peers::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments),
        Command::Loop(arguments) => looped::run(&arguments),
        Command::Growth(arguments) => growth::run(&arguments),
        Command::Load(arguments) => run_load(&arguments),
        Command::Proxy(arguments) => run_proxy(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(exit::BENCHMARK_FAILED)
        }
    }
}

fn run_tpcc(arguments: &TpccArgs) -> Result<()> {
    match (&arguments.worker, &arguments.worker_data) {
        (Some(url), Some(data)) => tpcc::run_worker(arguments, url, data),
        _ => tpcc::run(arguments),
    }
}

fn run_proxy(arguments: &ProxyArgs) -> Result<()> {
    let listener = TcpListener::bind(arguments.listen)
        .map_err(|error| format!("failed to listen on {}: {error}", arguments.listen))?;
    proxy::serve(&listener, arguments.to, arguments.delay)
}

fn run_load(arguments: &LoadArgs) -> Result<()> {
    let command: Vec<&str> = arguments.command.iter().map(String::as_str).collect();
    if [arguments.connections, arguments.pipeline].contains(&0) || arguments.key_space == 0 {
        return Err("--connections, --pipeline and --key-space must be at least 1".into());
    }
    let mut load = Load::resp(arguments.address, &command, arguments.data_size)?;
    load.connections = arguments.connections;
    load.pipeline = arguments.pipeline;
    load.threads = arguments.threads;
    load.shape = arguments.keys;
    load.key_space = arguments.key_space;
    load.seed = arguments.seed;
    load.bound = match arguments.requests {
        Some(count) => Bound::Requests(count),
        None => Bound::Time(Duration::try_from_secs_f64(arguments.seconds)?),
    };
    let cpu = cpu::own_cpu()?;
    let outcome = load.run()?;
    let client_cpu_us = bench::cpu_us(cpu, cpu::own_cpu()?, outcome.requests);
    let names = ["requests", "errors", "seconds", "per_second", "client_cpu_us", "p50_us"];
    let more = ["p99_us", "p999_us", "max_us", "distinct_keys"];
    let values = [
        outcome.requests as f64,
        outcome.errors as f64,
        outcome.elapsed.as_secs_f64(),
        outcome.per_second(),
        client_cpu_us,
        outcome.latency_us(0.5),
        outcome.latency_us(0.99),
        outcome.latency_us(0.999),
        outcome.latency_us(1.0),
        outcome.distinct_keys as f64,
    ];
    let fields = names.iter().chain(&more).zip(values);
    if arguments.json {
        let map: serde_json::Map<_, _> =
            fields.map(|(name, value)| ((*name).to_owned(), value.into())).collect();
        println!("{}", serde_json::Value::Object(map));
    } else {
        fields.for_each(|(name, value)| println!("{name:>14}  {value:.2}"));
    }
    outcome.without_errors().map(drop)
}
