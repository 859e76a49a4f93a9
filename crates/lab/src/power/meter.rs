//! The meters: what a computer, or an instrument beside it, says about its power.
//!
//! Upstream:   `mod`, with the meter's name on the command line.
//! Downstream: files of the kernel, commands, and `serial`.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::energy::{Counter, Sample};
use super::sampler::Meter;
use super::serial::{Instrument, Port};
use crate::ticks::Ticks;

/// Where the kernel shows energy counters of processors (RAPL).
const POWERCAP: &str = "/sys/class/powercap";
/// Where the kernel shows sensors.
const HWMON: &str = "/sys/class/hwmon";
/// The processor time of the machine.
const PROC_STAT: &str = "/proc/stat";

/// Which meter the user wants.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MeterName {
    /// `powercap[:FOLDER]`: the energy counters of all processor packages.
    Powercap(PathBuf),
    /// `hwmon[:FOLDER]`: the sum of all power sensors.
    Hwmon(PathBuf),
    /// `ipmi`: the whole computer, by its management controller.
    Ipmi,
    /// `nvidia`: the sum of all graphics processors.
    Nvidia,
    /// `mcp39f511:DEVICE[,BAUD]`, `wt210:DEVICE[,BAUD]`: an instrument on a serial line.
    Serial(Port),
    /// `command:COMMAND`: a command that prints watts.
    Command(String),
    /// `csv:FILE[,OFFSET_S[,DRIFT_PPM]]`: recorded elsewhere.
    Csv { file: PathBuf, offset_s: f64, drift_ppm: f64 },
    /// `model:IDLE_W,BUSY_W`: an estimate from processor time.
    Model { idle_w: f64, busy_w: f64 },
}

impl fmt::Display for MeterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Powercap(folder) => write!(f, "powercap:{}", folder.display()),
            Self::Hwmon(folder) => write!(f, "hwmon:{}", folder.display()),
            Self::Ipmi => f.write_str("ipmi"),
            Self::Nvidia => f.write_str("nvidia"),
            Self::Serial(port) => port.fmt(f),
            Self::Command(command) => write!(f, "command:{command}"),
            Self::Csv { file, offset_s, drift_ppm } => {
                write!(f, "csv:{},{offset_s},{drift_ppm}", file.display())
            }
            Self::Model { idle_w, busy_w } => write!(f, "model:{idle_w},{busy_w}"),
        }
    }
}

impl MeterName {
    /// Reads a name from the command line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once(':').map_or((text, None), |(a, b)| (a, Some(b)));
        if let (Some(instrument), Some(rest)) = (Instrument::named(name), rest) {
            return Port::parse(instrument, rest).map(Self::Serial);
        }
        let folder = |usual: &str| PathBuf::from(rest.unwrap_or(usual));
        match (name, rest) {
            ("powercap", _) => Ok(Self::Powercap(folder(POWERCAP))),
            ("hwmon", _) => Ok(Self::Hwmon(folder(HWMON))),
            ("ipmi", None) => Ok(Self::Ipmi),
            ("nvidia", None) => Ok(Self::Nvidia),
            ("command", Some(command)) if !command.trim().is_empty() => {
                Ok(Self::Command(command.to_owned()))
            }
            ("csv", Some(rest)) => {
                let mut parts = rest.split(',');
                let file =
                    parts.next().filter(|file| !file.is_empty()).ok_or("csv needs a file")?;
                let offset_s = parts.next().map_or(Ok(0.0), number)?;
                let drift_ppm = parts.next().map_or(Ok(0.0), number)?;
                match parts.next() {
                    None => Ok(Self::Csv { file: file.into(), offset_s, drift_ppm }),
                    Some(more) => Err(format!("'{more}': csv has a file, an offset and a drift")),
                }
            }
            ("model", Some(rest)) => {
                let parts: Vec<f64> = rest.split(',').map(number).collect::<Result<_, _>>()?;
                match parts[..] {
                    [idle_w, busy_w] if idle_w >= 0.0 && busy_w > idle_w => {
                        Ok(Self::Model { idle_w, busy_w })
                    }
                    _ => {
                        Err("model needs the watts of the idle and of the busy machine".to_owned())
                    }
                }
            }
            _ => Err("not powercap, hwmon, ipmi, nvidia, mcp39f511:DEVICE[,BAUD], \
                      wt210:DEVICE[,BAUD], command:COMMAND, csv:FILE[,OFFSET_S[,DRIFT_PPM]] or \
                      model:IDLE_W,BUSY_W"
                .to_owned()),
        }
    }

    /// Whether its figures are computed from something else than power.
    pub(crate) fn is_estimate(&self) -> bool {
        matches!(self, Self::Model { .. })
    }

    /// Opens the meter. `None` if its samples are read from a file afterwards.
    ///
    /// Errors: this machine has no such meter.
    pub(super) fn open(&self) -> Result<Option<Box<dyn Meter>>, String> {
        Ok(match self {
            Self::Powercap(folder) => Some(Box::new(Powercap::open(folder)?)),
            Self::Hwmon(folder) => Some(Box::new(Hwmon::open(folder)?)),
            Self::Ipmi => Some(Box::new(Printed {
                words: ["ipmitool", "dcmi", "power", "reading"].map(str::to_owned).to_vec(),
                watts: dcmi_watts,
            })),
            Self::Nvidia => {
                let query = ["--query-gpu=power.draw", "--format=csv,noheader,nounits"];
                let words = [&["nvidia-smi"][..], &query].concat();
                let words = words.into_iter().map(str::to_owned).collect();
                Some(Box::new(Printed { words, watts: sum_of_lines }))
            }
            Self::Command(command) => {
                let words = ["sh", "-c", command].map(str::to_owned).to_vec();
                Some(Box::new(Printed { words, watts: sum_of_lines }))
            }
            Self::Serial(port) => Some(port.open()?),
            Self::Csv { .. } => None,
            Self::Model { idle_w, busy_w } => {
                let (idle_w, busy_w) = (*idle_w, *busy_w);
                Some(Box::new(Model { idle_w, busy_w, file: PROC_STAT.into(), before: None }))
            }
        })
    }

    /// The best meter that this machine has.
    ///
    /// Errors: it has none.
    pub(super) fn usual() -> Result<Self, String> {
        let found = [Self::Powercap(POWERCAP.into()), Self::Hwmon(HWMON.into())];
        found.into_iter().find(|name| name.open().is_ok()).ok_or_else(|| {
            "this machine shows neither powercap nor hwmon; name a meter, or \
             --meter model:IDLE_W,BUSY_W for an estimate"
                .to_owned()
        })
    }
}

fn number(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.trim().parse().ok();
    number.filter(|number| number.is_finite()).ok_or_else(|| format!("'{text}' is not a number"))
}

fn read_number(file: &Path) -> Result<u64, String> {
    let named = |error: &dyn fmt::Display| format!("{}: {error}", file.display());
    let text = fs::read_to_string(file).map_err(|error| named(&error))?;
    text.trim().parse().map_err(|error| named(&error))
}

/// The entries of a folder whose names `is_wanted`, in order.
fn entries(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let read = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut entries: Vec<PathBuf> = read
        .filter(|entry| entry.file_name().to_str().is_some_and(&is_wanted))
        .map(|e| e.path())
        .collect();
    entries.sort();
    entries
}

/// RAPL by the kernel's powercap: microjoules of each processor package, counted by the processor.
/// Memory is in it only if the processor counts it there.
struct Powercap {
    zones: Vec<(PathBuf, Counter)>,
}

impl Powercap {
    fn open(folder: &Path) -> Result<Self, String> {
        // `intel-rapl:0` is a package, `intel-rapl:0:1` a part of it. The platform (psys) has a
        // zone beside the packages and counts their energy once more; only its name tells.
        let is_outermost = |name: &str| name.contains("rapl:") && name.matches(':').count() == 1;
        let mut zones = Vec::new();
        for zone in entries(folder, is_outermost) {
            let name = fs::read_to_string(zone.join("name"));
            if name.is_ok_and(|name| !name.starts_with("package")) {
                continue;
            }
            read_number(&zone.join("energy_uj"))?;
            let range = read_number(&zone.join("max_energy_range_uj"))?;
            zones.push((zone.join("energy_uj"), Counter::new(range.saturating_add(1))));
        }
        if zones.is_empty() {
            return Err(format!("{}: no energy counter of a processor", folder.display()));
        }
        Ok(Self { zones })
    }
}

impl Meter for Powercap {
    fn sample(&mut self) -> Result<Sample, String> {
        let mut microjoules = 0;
        for (file, counter) in &mut self.zones {
            microjoules += counter.take(read_number(file)?);
        }
        Ok(Sample::Joules(microjoules as f64 / 1e6))
    }
}

/// All sensors of the kernel's hwmon that show power, in microwatts.
struct Hwmon {
    files: Vec<PathBuf>,
}

impl Hwmon {
    fn open(folder: &Path) -> Result<Self, String> {
        let is_power = |name: &str| name.starts_with("power") && name.ends_with("_input");
        let chips = entries(folder, |_| true);
        let files: Vec<PathBuf> = chips.iter().flat_map(|chip| entries(chip, is_power)).collect();
        if files.is_empty() {
            return Err(format!("{}: no sensor of power", folder.display()));
        }
        Ok(Self { files })
    }
}

impl Meter for Hwmon {
    fn sample(&mut self) -> Result<Sample, String> {
        let mut microwatts = 0;
        for file in &self.files {
            microwatts += read_number(file)?;
        }
        Ok(Sample::Watts(microwatts as f64 / 1e6))
    }
}

/// A command that prints watts.
struct Printed {
    words: Vec<String>,
    watts: fn(&str) -> Option<f64>,
}

impl Meter for Printed {
    fn sample(&mut self) -> Result<Sample, String> {
        let name = self.words.join(" ");
        let answer = Command::new(&self.words[0]).args(&self.words[1..]).output();
        let answer = answer.map_err(|error| format!("{name}: {error}"))?;
        let printed = String::from_utf8_lossy(&answer.stdout);
        if !answer.status.success() {
            let said = String::from_utf8_lossy(&answer.stderr);
            let why = said.lines().next().unwrap_or("no reason given");
            return Err(format!("{name}: {}: {why}", answer.status));
        }
        let watts = (self.watts)(&printed).filter(|watts| watts.is_finite() && *watts >= 0.0);
        watts.map(Sample::Watts).ok_or_else(|| {
            format!("{name}: printed no watts: {:?}", printed.lines().next().unwrap_or(""))
        })
    }
}

/// The sum of a number a line.
fn sum_of_lines(printed: &str) -> Option<f64> {
    let lines: Vec<&str> = printed.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let numbers: Option<Vec<f64>> = lines.iter().map(|line| line.parse().ok()).collect();
    numbers.filter(|numbers| !numbers.is_empty()).map(|numbers| numbers.iter().sum())
}

/// The reading of `ipmitool dcmi power reading`: "Instantaneous power reading: 226 Watts".
fn dcmi_watts(printed: &str) -> Option<f64> {
    let line = printed.lines().find(|line| line.contains("Instantaneous power reading"))?;
    line.split_once(':')?.1.split_whitespace().next()?.parse().ok()
}

/// An estimate: the power of the idle machine, and the rest in proportion to its processor time
/// (Fan, Weber, Barroso, "Power Provisioning for a Warehouse-sized Computer", ISCA 2007).
struct Model {
    idle_w: f64,
    busy_w: f64,
    file: PathBuf,
    /// The processor time of the machine at the last sample.
    before: Option<Ticks>,
}

impl Meter for Model {
    fn sample(&mut self) -> Result<Sample, String> {
        let named = |error: &dyn fmt::Display| format!("{}: {error}", self.file.display());
        let text = fs::read_to_string(&self.file).map_err(|error| named(&error))?;
        let line = text.lines().next().and_then(|line| line.strip_prefix("cpu "));
        let now = line.and_then(Ticks::parse).ok_or_else(|| named(&"no processor time"))?;
        let before = self.before.replace(now);
        let share = before.map_or(0.0, |before| now.busy_share_since(before));
        Ok(Sample::Watts(self.idle_w + (self.busy_w - self.idle_w) * share.min(1.0)))
    }
}

/// Samples that were recorded elsewhere, as lines "unix_s,watts". `offset_s` is added to their
/// times, and `drift_ppm` is how many microseconds a second their clock was slow, from the first
/// sample on. Lines that begin with a letter or `#` are heads.
///
/// Errors: the file cannot be read, or a line has other content or goes back in time.
pub(super) fn recorded(
    file: &Path,
    offset_s: f64,
    drift_ppm: f64,
) -> Result<Vec<(f64, Sample)>, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut samples: Vec<(f64, Sample)> = Vec::new();
    let mut first_s = None;
    for (index, line) in text.lines().enumerate() {
        let is_head = line.starts_with(|first: char| first.is_alphabetic() || first == '#');
        if is_head || line.trim().is_empty() {
            continue;
        }
        let named = |what: &str| format!("{}: line {}: {what}", file.display(), index + 1);
        let (time, watts) = line.split_once(',').ok_or_else(|| named("not unix_s,watts"))?;
        let time_s = number(time).map_err(|error| named(&error))?;
        let watts = number(watts).map_err(|error| named(&error))?;
        let begin_s = *first_s.get_or_insert(time_s);
        let at_s = time_s + (time_s - begin_s) * drift_ppm / 1e6 + offset_s;
        if samples.last().is_some_and(|(last_s, _)| at_s < *last_s) {
            return Err(named("the time goes back"));
        }
        samples.push((at_s, Sample::Watts(watts)));
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(folder: &Path, path: &str, content: &str) {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, content).expect("written");
    }

    #[test]
    fn powercap_adds_packages_and_not_their_parts() {
        let folder = tempfile::tempdir().expect("a folder");
        for (zone, energy) in [
            ("intel-rapl:0", 9_000_000),
            ("intel-rapl:1", 500),
            ("intel-rapl:0:0", 7),
            ("intel-rapl:2", 0),
        ] {
            written(folder.path(), &format!("{zone}/energy_uj"), &format!("{energy}\n"));
            written(folder.path(), &format!("{zone}/max_energy_range_uj"), "9999999\n");
        }
        written(folder.path(), "intel-rapl:0/name", "package-0\n"); // The other has no name.
        written(folder.path(), "intel-rapl:2/name", "psys\n");
        let mut meter = Powercap::open(folder.path()).expect("two packages");
        assert_eq!(meter.sample(), Ok(Sample::Joules(0.0)));
        written(folder.path(), "intel-rapl:0/energy_uj", "2000000\n"); // Began again.
        written(folder.path(), "intel-rapl:1/energy_uj", "1000500\n");
        written(folder.path(), "intel-rapl:0:0/energy_uj", "5000000\n");
        written(folder.path(), "intel-rapl:2/energy_uj", "6000000\n");
        assert_eq!(meter.sample(), Ok(Sample::Joules(4.0)));
        fs::remove_file(folder.path().join("intel-rapl:1/energy_uj")).expect("removed");
        assert!(meter.sample().unwrap_err().contains("intel-rapl:1"));
        assert!(Powercap::open(Path::new("/no/such/folder")).is_err());
    }

    #[test]
    fn hwmon_adds_all_sensors_of_power() {
        let folder = tempfile::tempdir().expect("a folder");
        written(folder.path(), "hwmon0/power1_input", "12500000\n");
        written(folder.path(), "hwmon0/temp1_input", "40000\n");
        written(folder.path(), "hwmon3/power2_input", "500000\n");
        let mut meter = Hwmon::open(folder.path()).expect("two sensors");
        assert_eq!(meter.sample(), Ok(Sample::Watts(13.0)));
    }

    #[test]
    fn commands_print_watts_or_say_why_not() {
        let watts = |command: &str| {
            let name = MeterName::parse(&format!("command:{command}")).expect("a command");
            name.open().expect("it opens").expect("it samples").sample()
        };
        assert_eq!(watts("echo 12.5; echo 7.5"), Ok(Sample::Watts(20.0)));
        for (command, named) in [
            ("echo twelve", "twelve"),
            ("true", "no watts"),
            ("echo -3", "-3"),
            ("echo gone >&2; exit 3", "gone"),
        ] {
            let error = watts(command).unwrap_err();
            assert!(error.contains(named), "{command}: {error}");
        }
    }

    /// The reply of a management controller, in the form that ipmitool prints.
    #[test]
    fn the_reading_of_a_management_controller_is_found() {
        let printed = "\n    Instantaneous power reading:                   226 Watts\n    \
                       Minimum during sampling period:                 4 Watts\n    \
                       Power reading state is:                   activated\n\n";
        assert_eq!(dcmi_watts(printed), Some(226.0));
        assert_eq!(dcmi_watts("DCMI request failed"), None);
    }

    #[test]
    fn the_model_is_linear_in_processor_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("stat");
        let mut model = Model { idle_w: 50.0, busy_w: 150.0, file: file.clone(), before: None };
        assert!(model.sample().unwrap_err().contains("stat"));
        for (line, watts) in [
            ("cpu  100 0 100 1000 0 0 0 0 0 0", 50.0),
            ("cpu  125 0 125 1100 50 0 0 0 0 0", 75.0), // 50 of 200 ticks were busy.
            ("cpu  125 0 125 1200 50 0 0 100 0 0", 100.0), // Stolen time is busy.
            ("cpu  225 0 125 1200 50 0 0 100 90 0", 150.0),
        ] {
            fs::write(&file, format!("{line}\ncpu0 1 2 3 4 5\n")).expect("written");
            assert_eq!(model.sample(), Ok(Sample::Watts(watts)), "{line}");
        }
    }

    #[test]
    fn a_recording_is_moved_by_its_offset_and_stretched_by_its_drift() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("recording.csv");
        fs::write(&file, "unix_s,watts\n1000,40\n1001,41.5\n\n2000,42\n").expect("written");
        let samples = recorded(&file, -1000.0, 100.0).expect("valid");
        let expected = [
            (0.0, Sample::Watts(40.0)),
            (1.0001, Sample::Watts(41.5)),
            (1000.1, Sample::Watts(42.0)),
        ];
        assert_eq!(samples.len(), expected.len());
        for ((at_s, sample), (expected_s, expected)) in samples.iter().zip(expected) {
            assert!((at_s - expected_s).abs() < 1e-9 && *sample == expected, "{at_s}");
        }
        for (content, named) in [("1000;40", "line 1"), ("5,1\n4,1", "line 2"), ("5,x", "'x'")] {
            fs::write(&file, content).expect("written");
            let error = recorded(&file, 0.0, 0.0).unwrap_err();
            assert!(error.contains(named), "{content}: {error}");
        }
    }

    #[test]
    fn meters_are_named_on_the_command_line() {
        let csv = MeterName::parse("csv:a.csv,-0.5,20").expect("valid");
        assert_eq!(csv, MeterName::Csv { file: "a.csv".into(), offset_s: -0.5, drift_ppm: 20.0 });
        assert!(MeterName::parse("model:10,90").expect("valid").is_estimate());
        for name in ["powercap:/a", "hwmon:/b", "ipmi", "nvidia", "command:echo 1", "model:1,2"] {
            assert_eq!(MeterName::parse(name).expect("valid").to_string(), name);
        }
        for wrong in ["watts", "model:90,10", "model:1", "csv:", "csv:a,b", "command:", "ipmi:1"] {
            assert!(MeterName::parse(wrong).is_err(), "{wrong}");
        }
        for (name, shown) in [
            ("mcp39f511:/dev/ttyUSB0", "mcp39f511:/dev/ttyUSB0,115200"),
            ("mcp39f511:/dev/ttyUSB0,9600", "mcp39f511:/dev/ttyUSB0,9600"),
            ("wt210:/dev/ttyS0", "wt210:/dev/ttyS0,9600"),
        ] {
            assert_eq!(MeterName::parse(name).expect("valid").to_string(), shown);
        }
        for (wrong, named) in [
            ("wt210", "wt210:DEVICE"),
            ("wt210:", "needs a device"),
            ("mcp39f511:,9600", "needs a device"),
            ("wt210:/dev/ttyS0,19200", "1200, 2400, 4800, 9600"),
            ("mcp39f511:/dev/ttyS0,9601", "57600, 115200"),
        ] {
            let error = MeterName::parse(wrong).unwrap_err();
            assert!(error.contains(named), "{wrong}: {error}");
        }
    }
}
