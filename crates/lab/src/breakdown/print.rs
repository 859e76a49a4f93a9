//! The figures as text, with what could not be seen.
//!
//! Upstream:   `mod`, with a report.
//! Downstream: standard output.

use std::fmt::Write as _;

use kachel_stdx::plural;

use super::cpu::{CpuView, Named, percent};
use super::measure::Report;
use super::parts::Part;
use super::wall::{Covered, Times, WallView};

/// Less than this share of samples without symbols is not worth a list of files.
const MISSING_MIN: f64 = 0.05;

/// The text of a report.
pub(super) fn text(report: &Report) -> String {
    let mut text = format!("process {}, {}\n", report.pid, report.program);
    if let Some(view) = &report.cpu {
        let _ = write!(text, "\n{}", of_cpu(view));
    }
    if let Some(view) = &report.wall {
        let _ = write!(text, "\n{}", of_wall(view));
    }
    text + &not_seen(report)
}

/// The view of time on a core.
fn of_cpu(view: &CpuView) -> String {
    let mut text = format!(
        "Time on a core: {:.3} s busy in {:.3} s, {} samples, {:.1} % of them in user code\n",
        view.busy_s,
        view.seconds,
        view.samples,
        percent(view.user_samples, view.samples),
    );
    for share in &view.parts {
        let _ = writeln!(text, "  {:<22} {:>6.2} %", share.part.name(), share.percent);
    }
    let _ = writeln!(
        text,
        "  Interrupts and softirqs took {:.2} % beside that; they may serve other processes.",
        percent(view.interrupt_samples, view.samples)
    );
    named(&mut text, "functions", &view.functions);
    named(&mut text, "the kernel by system call", &view.calls);
    for event in &view.events {
        if let Some(count) = event.count {
            let _ = writeln!(text, "  {}: {count}", event.name);
        }
    }
    let count = |name| view.events.iter().find(|event| event.name == name)?.count;
    if let (Some(cycles @ 1..), Some(instructions)) = (count("cycles"), count("instructions")) {
        let _ =
            writeln!(text, "  instructions per cycle: {:.2}", instructions as f64 / cycles as f64);
    }
    text
}

fn named(text: &mut String, title: &str, rows: &[Named]) {
    let _ = writeln!(text, "  {title}:");
    for row in rows {
        let _ = writeln!(text, "    {:>6.2} %  {:<22} {}", row.percent, row.part.name(), row.name);
    }
}

fn milliseconds(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

/// The view of time by the clock.
fn of_wall(view: &WallView) -> String {
    let mut text = format!(
        "Time by the clock: {:.3} s, {} {}\n",
        view.seconds,
        view.threads,
        plural(view.threads, "thread", "threads")
    );
    text.push_str(
        "  system calls: milliseconds in which at least one was open, its share, the sum over \
         threads; a call that works and then sleeps (io_uring_enter) counts as a wait\n",
    );
    for row in &view.parts {
        text.push_str(&line(&row.covered, row.name));
    }
    text.push_str("  each:\n");
    for row in &view.calls {
        text.push_str(&line(&row.covered, &format!("  {}", row.name)));
    }
    let Times { running_ns, runnable_ns, blocked_ns, preempted_count, .. } = view.all;
    let _ = writeln!(
        text,
        "  threads, milliseconds: {} running ({} of it outside of calls), {} waiting for a core, {} \
         asleep\n  asleep: {} in a futex, {} waiting for work, {} in other calls; lost a core {} times",
        milliseconds(running_ns),
        milliseconds(view.outside.running_ns),
        milliseconds(runnable_ns),
        milliseconds(blocked_ns),
        milliseconds(view.blocked_futex_ns),
        milliseconds(view.blocked_for_work_ns),
        milliseconds(view.blocked_other_ns),
        preempted_count,
    );
    text
}

fn line(row: &Covered, name: &str) -> String {
    let (covered, sum) = (milliseconds(row.covered_ns), milliseconds(row.sum_ns));
    format!(
        "    {name:<24} {covered:>12} {:>6.2} % {sum:>12}  {:>9} calls, {} slept\n",
        row.covered_percent, row.calls, row.slept
    )
}

/// The facts that the figures do not show.
fn not_seen(report: &Report) -> String {
    let mut text = String::from("\nNot seen:\n");
    let before = text.len();
    if !report.has_kernel_symbols {
        text.push_str("  symbols of the kernel (/proc/kallsyms hides them)\n");
    }
    if let Some(view) = &report.cpu {
        of_cpu_not_seen(&mut text, view);
    }
    if let Some(view) = &report.wall {
        for (number, what) in [
            (view.calls_lost, "system calls: their times are missing above"),
            (view.threads_lost, "events of threads beyond the most that are followed"),
        ] {
            if number > 0 {
                let _ = writeln!(text, "  lost: {number} {what}");
            }
        }
    }
    if text.len() == before { String::new() } else { text }
}

fn of_cpu_not_seen(text: &mut String, view: &CpuView) {
    let missing = view.parts.iter().find(|share| share.part == Part::NoSymbol);
    if let Some(share) = missing
        && share.percent > 0.0
    {
        let files = view.without_symbols.iter().filter(|row| row.percent >= MISSING_MIN);
        let files: Vec<String> =
            files.map(|row| format!("{} {:.2} %", row.name, row.percent)).collect();
        let _ = writeln!(
            text,
            "  symbols missing for {:.2} % of samples ({})",
            share.percent,
            files.join(", ")
        );
    }
    if view.samples_lost > 0 {
        let _ = writeln!(text, "  lost: {} samples", view.samples_lost);
    }
    let missing =
        view.events.iter().filter_map(|event| Some((event.name, event.missing.as_ref()?)));
    let missing: Vec<(&str, &String)> = missing.collect();
    if let Some((_, cause)) = missing.first() {
        let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
        let _ =
            writeln!(text, "  {}: this machine does not count them ({cause})", names.join(", "));
    }
    text.push_str(
        "  the kernel while it keeps interrupts off: its samples count where it allows them again\n",
    );
}
