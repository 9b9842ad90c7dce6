//! `5spot schedule`, driven as a user drives it: whole outputs, and the documentation.

#![expect(clippy::unwrap_used, reason = "helpers of tests: the line that fails is the message")]

use expect_test::{Expect, expect, expect_file};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a command line of ours as a shell would, from the root of the checkout.
fn shell(line: &str, input: &str) -> Output {
    let bin = Path::new(env!("CARGO_BIN_EXE_5spot")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut child = Command::new("sh")
        .args(["-c", line])
        .current_dir(root())
        .env("PATH", path)
        .env("TZ", "Europe/Zurich")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Exit code, standard output and standard error of a command line.
fn check(line: &str, expect: &Expect) {
    let output = shell(line, "");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    expect.assert_eq(&format!(
        "{}{}exit {}\n",
        text(&output.stdout),
        text(&output.stderr),
        output.status.code().unwrap()
    ));
}

fn stdout(line: &str) -> String {
    let output = shell(line, "");
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

const MARCH: &str =
    "--days mon-fri --hours 1-5,22-23 --timezone America/New_York --from 2027-03-08 --weeks 2";

#[test]
fn the_pictures_of_the_documentation_are_current() {
    let picture = stdout(&format!("5spot schedule preview {MARCH} -o svg"));
    expect_file!["../../../docs/pictures/new-york-in-march.svg"].assert_eq(&picture);
}

#[test]
fn what_the_documentation_shows_is_what_happens() {
    let page = fs::read_to_string(root().join("docs/schedules.md")).unwrap();
    let mut commands = 0;
    for block in page.split("```console\n").skip(1) {
        let (command, shown) = block.split("```").next().unwrap().split_once('\n').unwrap();
        let line = command.strip_prefix("$ ").unwrap();
        let printed = String::from_utf8(shell(line, "").stdout).unwrap();
        assert_eq!(printed, shown, "{line}");
        commands += 1;
    }
    assert_eq!(commands, 4);
}

#[test]
fn a_week_with_a_change_of_clocks() {
    check(
        "5spot schedule preview --days sun --hours 1-3 --timezone Australia/Lord_Howe --from 2026-10-03",
        &expect![[r#"
            schedule: sun, hours 1-3
            read in Australia/Lord_Howe (tzdata 2026e); not lent at 2026-10-02T13:30:00Z

                            00    03    06    09    12    15    18    21      Australia/Lord_Howe
                            15:30 18:30 21:30 00:30 03:30 06:30 09:30 12:30   Europe/Zurich
            Sat 2026-10-03  ················································
                            15    18    21    00    03    06    09    12      Europe/Zurich
            Sun 2026-10-04  ··██████········································  clocks go forward 30 min at 02:00
            Mon 2026-10-05  ················································
            Tue 2026-10-06  ················································
            Wed 2026-10-07  ················································
            Thu 2026-10-08  ················································
            Fri 2026-10-09  ················································

                 Australia/Lord_Howe        Europe/Zurich              UTC
            on   Sun 2026-10-04 01:00 +1030 Sat 2026-10-03 16:30 CEST  2026-10-03T14:30:00Z  clocks change this day
            off  Sun 2026-10-04 04:00 +11   Sat 2026-10-03 19:00 CEST  2026-10-03T17:00:00Z  clocks change this day
            exit 0
        "#]],
    );
}

#[test]
fn a_day_that_does_not_exist() {
    check(
        "5spot schedule preview --hours 12 --timezone Pacific/Apia --from 2011-12-28 --viewer UTC",
        &expect![[r#"
            schedule: every day, hours 12
            read in Pacific/Apia (tzdata 2026e); not lent at 2011-12-28T10:00:00Z

                            00    03    06    09    12    15    18    21      Pacific/Apia
                            10    13    16    19    22    01    04    07      UTC
            Wed 2011-12-28  ························██······················
            Thu 2011-12-29  ························██······················
                            10    13    16    19    22    01    04    07      UTC
            Fri 2011-12-30                                                    this day does not exist here
            Sat 2011-12-31  ························██······················  clocks go forward 24 h at 00:00
            Sun 2012-01-01  ························██······················
            Mon 2012-01-02  ························██······················
            Tue 2012-01-03  ························██······················

                 Pacific/Apia               UTC                        UTC
            on   Wed 2011-12-28 12:00 -10   Wed 2011-12-28 22:00 UTC   2011-12-28T22:00:00Z
            off  Wed 2011-12-28 13:00 -10   Wed 2011-12-28 23:00 UTC   2011-12-28T23:00:00Z
            on   Thu 2011-12-29 12:00 -10   Thu 2011-12-29 22:00 UTC   2011-12-29T22:00:00Z
            off  Thu 2011-12-29 13:00 -10   Thu 2011-12-29 23:00 UTC   2011-12-29T23:00:00Z
            on   Sat 2011-12-31 12:00 +14   Fri 2011-12-30 22:00 UTC   2011-12-30T22:00:00Z  clocks change this day
            off  Sat 2011-12-31 13:00 +14   Fri 2011-12-30 23:00 UTC   2011-12-30T23:00:00Z  clocks change this day
            on   Sun 2012-01-01 12:00 +14   Sat 2011-12-31 22:00 UTC   2011-12-31T22:00:00Z
            off  Sun 2012-01-01 13:00 +14   Sat 2011-12-31 23:00 UTC   2011-12-31T23:00:00Z
            on   Mon 2012-01-02 12:00 +14   Sun 2012-01-01 22:00 UTC   2012-01-01T22:00:00Z
            off  Mon 2012-01-02 13:00 +14   Sun 2012-01-01 23:00 UTC   2012-01-01T23:00:00Z
            on   Tue 2012-01-03 12:00 +14   Mon 2012-01-02 22:00 UTC   2012-01-02T22:00:00Z
            off  Tue 2012-01-03 13:00 +14   Mon 2012-01-02 23:00 UTC   2012-01-02T23:00:00Z
            exit 0
        "#]],
    );
}

#[test]
fn minutes_by_cron_are_listed_up_to_a_bound() {
    let text = stdout("5spot schedule preview --cron '*/15 * * * *' --timezone UTC --from 2026-11-16");
    assert!(text.contains("▒▒"), "{text}");
    let json =
        stdout("5spot schedule preview --cron '*/15 * * * *' --timezone UTC --from 2026-11-16 -o json");
    let changes = json.matches("\"at\": ").count();
    assert_eq!(changes, 2 * 4 * 24 * 7 - 1, "it is lent when the week begins");
    assert!(text.ends_with(&format!("... and {} more; -o json lists them all\n", changes - 60)), "{text}");
}

#[test]
fn json_for_scripts() {
    check(
        "5spot schedule preview --days sat --timezone America/New_York --from 2026-10-31T00:00 -o json",
        &expect![[r#"
            {
              "active": true,
              "from": "2026-10-31T04:00:00Z",
              "heldBy": null,
              "name": "schedule",
              "rule": "sat, all day",
              "timezone": "America/New_York",
              "to": "2026-11-07T05:00:00Z",
              "transitions": [
                {
                  "active": false,
                  "at": "2026-11-01T04:00:00Z",
                  "local": "2026-11-01T00:00:00-04:00[America/New_York]"
                }
              ],
              "tzdata": "2026e"
            }
            exit 0
        "#]],
    );
}

#[test]
fn a_calendar_file() {
    let text = stdout(
        "5spot schedule preview -f examples/business-hours.yaml --from 2026-11-16T12:00 --weeks 1 -o ics",
    );
    assert!(text.lines().count() > 50 && text.contains("\r\n"), "{text}");
    // Monday's window is open when the preview begins, and the next Monday's when it ends: both are shown whole.
    assert_eq!(text.matches("BEGIN:VEVENT").count(), 6, "{text}");
    assert!(text.contains("DTSTART:20261116T140000Z\r\nDTEND:20261116T230000Z\r\n"), "{text}");
    assert!(text.contains("DTSTART:20261123T140000Z\r\nDTEND:20261123T230000Z\r\n"), "{text}");
    assert!(text.contains("UID:20261116T140000Z-business-hours.default@5spot.finos.org\r\n"), "{text}");
    assert_eq!(text.matches('\n').count(), text.matches("\r\n").count());
    assert!(text.split("\r\n").all(|line| line.len() <= 75), "{text}");
}

#[test]
fn a_calendar_file_folds_long_lines_and_is_never_empty() {
    let rule = "0,1,2,3,4,5,6,7,8,9,10,11,12 9 1,3,5,7,9,11,13,15,17,19,21 1-3,6-9 *";
    let text = stdout(&format!("5spot schedule preview --cron '{rule}' --from 2026-01-01 -o ics"));
    assert!(text.contains("\r\n ") && text.split("\r\n").all(|line| line.len() <= 75), "{text}");
    assert!(text.replace("\r\n ", "").contains("DESCRIPTION:cron 0-12 9 1\\,3\\,5"), "{text}");
    check(
        "5spot schedule preview --cron '* * 30 feb *' -o ics",
        &expect![[r#"
        5spot: nothing is lent in these weeks: there is no event to write
        exit 2
    "#]],
    );
}

#[test]
fn the_hours_of_the_viewer_follow_both_clocks() {
    let text = stdout(&format!("5spot schedule preview {MARCH} --viewer Europe/Zurich"));
    let lines: Vec<&str> = text.lines().filter(|line| line.ends_with("  Europe/Zurich")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].trim_start().starts_with("06 ") && lines[1].trim_start().starts_with("05 "), "{text}");
}

#[test]
fn a_preview_that_begins_at_noon_shows_every_day_it_touches() {
    let text = stdout(
        "5spot schedule preview --hours 1-5 --timezone America/New_York --from 2027-03-07T12:00 --viewer UTC",
    );
    assert!(text.contains("Sun 2027-03-14") && text.contains("clocks go forward 1 h at 02:00"), "{text}");
    assert!(
        text.contains("on   Sun 2027-03-14 01:00 EST") && text.contains("clocks change this day"),
        "{text}"
    );
}

#[test]
fn times_are_read_as_they_are_written() {
    check(
        "5spot schedule explain --hours 9 --timezone America/New_York --at '2027-03-14T05:30[Europe/Zurich]'",
        &expect![[r#"
            schedule: not lent at 2027-03-14T04:30:00Z
              rule     every day, hours 9
              local    Sat 2027-03-13 23:30:00 EST (UTC-05:00) in America/New_York
              day      sat is in mon-sun
              hour     23 is not in 9
              next     is lent Sun 2027-03-14 09:00:00 EDT (2027-03-14T13:00:00Z)
              clocks   go from 2027-03-14T02:00:00 to 2027-03-14T03:00:00 on the way (2027-03-14T07:00:00Z)
            exit 0
        "#]],
    );
    check(
        "5spot schedule explain --hours 9 --timezone America/New_York --at 2027-03-14T02:30",
        &expect![[r#"
            schedule: not lent at 2027-03-14T07:30:00Z
              rule     every day, hours 9
              local    Sun 2027-03-14 03:30:00 EDT (UTC-04:00) in America/New_York
              day      sun is in mon-sun
              hour     3 is not in 9
              next     is lent Sun 2027-03-14 09:00:00 EDT (2027-03-14T13:00:00Z)
            5spot: 2027-03-14T02:30:00 does not exist in America/New_York, where the clocks skip it: reading the time after the jump
            exit 0
        "#]],
    );
}

#[test]
fn lint_misses_nothing_that_looks_like_ours() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("broken.yaml", "a: [");
    write(
        "kind.yaml",
        "{apiVersion: 5spot.finos.org/v1alpha1, kind: ScheduleMachine, metadata: {name: typo}}",
    );
    write(
        "version.json",
        "{\"apiVersion\": \"5spot.finos.org/v1\", \"kind\": \"ScheduledMachine\", \"metadata\": {}}",
    );
    fs::copy(root().join("examples/weekend.yaml"), folder.path().join("weekend.yaml")).unwrap();
    let output = shell(&format!("5spot schedule lint -f {} --from 2026-11-15", folder.path().display()), "");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    for says in [
        "broken.yaml: error: ",
        "typo: error: the API server would refuse this: kind: must be ScheduledMachine",
        "apiVersion: must be 5spot.finos.org/v1alpha1",
        "metadata.name: is required",
        "weekend: warning: the clocks skip 2027-03-28 02:00 to 03:00",
    ] {
        assert!(text.contains(says), "{says}:\n{text}");
    }
    let output = shell("5spot schedule lint -f -", "");
    assert_eq!(output.status.code(), Some(2), "nothing to look at is not a clean bill");
}

#[test]
fn explain_on_both_sides_of_a_change() {
    check(
        "for at in 2027-03-14T06:59:59Z 2027-03-14T07:00:00Z; do \
         5spot schedule explain --hours 1-2 --timezone America/New_York --at $at; done",
        &expect![[r#"
            schedule: lent at 2027-03-14T06:59:59Z
              rule     every day, hours 1-2
              local    Sun 2027-03-14 01:59:59 EST (UTC-05:00) in America/New_York
              day      sun is in mon-sun
              hour     1 is in 1-2
              next     leaves Sun 2027-03-14 03:00:00 EDT (2027-03-14T07:00:00Z)
              clocks   go from 2027-03-14T02:00:00 to 2027-03-14T03:00:00 on the way (2027-03-14T07:00:00Z)
            schedule: not lent at 2027-03-14T07:00:00Z
              rule     every day, hours 1-2
              local    Sun 2027-03-14 03:00:00 EDT (UTC-04:00) in America/New_York
              day      sun is in mon-sun
              hour     3 is not in 1-2
              next     is lent Mon 2027-03-15 01:00:00 EDT (2027-03-15T05:00:00Z)
            exit 0
        "#]],
    );
}

#[test]
fn what_the_api_server_would_refuse_is_refused_with_every_error() {
    check(
        "5spot schedule preview -f crates/cli/tests/bad/malformed.yaml",
        &expect![[r#"
            crates/cli/tests/bad/malformed.yaml: document 1, misspelled: error: the API server would refuse this: spec.clusterName: is required
            crates/cli/tests/bad/malformed.yaml: document 1, misspelled: error: the API server would refuse this: spec.bootstrapSpec: is required
            crates/cli/tests/bad/malformed.yaml: document 1, misspelled: error: the API server would refuse this: spec.infrastructureSpec: is required
            crates/cli/tests/bad/malformed.yaml: document 1, misspelled: error: the API server would refuse this: spec.scheduel: unknown field: remove it, or look for a misspelling
            crates/cli/tests/bad/malformed.yaml: document 1, misspelled: error: the API server would refuse this: spec.schedule.daysOfWeek: must be of type array, not string
            crates/cli/tests/bad/malformed.yaml: document 3, out-of-range: error: the API server would refuse this: spec.schedule.daysOfWeek[1]: "fryday" at character 1 is not a day: expected mon, tue, wed, thu, fri, sat or sun
            crates/cli/tests/bad/malformed.yaml: document 3, out-of-range: error: the API server would refuse this: spec.schedule.hoursOfDay[0]: "24" at character 3 is not an hour: expected 0 to 23; midnight is 0
            crates/cli/tests/bad/malformed.yaml: document 3, out-of-range: error: 5-Spot would refuse this: spec.schedule.timezone: "Mars/Olympus" is not a time zone of the IANA database: write a name such as Europe/Zurich or UTC
            crates/cli/tests/bad/malformed.yaml: document 3, out-of-range: error: the API server would refuse this: spec.infrastructureSpec.apiVersion: "apps/v1" is not allowed: write a version of infrastructure.cluster.x-k8s.io or k0smotron.io
            crates/cli/tests/bad/malformed.yaml: document 3, out-of-range: error: the API server would refuse this: spec.priority: 300 is out of range: write a number from 0 to 255
            exit 2
        "#]],
    );
    check(
        "5spot schedule preview --days mno --hours 9am --timezone europe/zurich",
        &expect![[r#"
        5spot: --days: "mno" at character 1 is not a day: expected mon, tue, wed, thu, fri, sat or sun; did you mean mon?
        5spot: --hours: "9am" at character 1 is not an hour: expected 0 to 23; did you mean 9?
        5spot: --timezone: "europe/zurich" is not a time zone of the IANA database: did you mean Europe/Zurich?
        exit 2
    "#]],
    );
}

#[test]
fn lint_reads_folders_and_many_documents() {
    check(
        "5spot schedule lint -f crates/cli/tests/bad --from 2026-11-15",
        &expect![[r#"
            crates/cli/tests/bad/malformed.yaml: document 1, misspelled: error: the API server would refuse this: spec.clusterName: is required
            crates/cli/tests/bad/malformed.yaml: document 1, misspelled: error: the API server would refuse this: spec.bootstrapSpec: is required
            crates/cli/tests/bad/malformed.yaml: document 1, misspelled: error: the API server would refuse this: spec.infrastructureSpec: is required
            crates/cli/tests/bad/malformed.yaml: document 1, misspelled: error: the API server would refuse this: spec.scheduel: unknown field: remove it, or look for a misspelling
            crates/cli/tests/bad/malformed.yaml: document 1, misspelled: error: the API server would refuse this: spec.schedule.daysOfWeek: must be of type array, not string
            crates/cli/tests/bad/malformed.yaml: document 3, out-of-range: error: the API server would refuse this: spec.schedule.daysOfWeek[1]: "fryday" at character 1 is not a day: expected mon, tue, wed, thu, fri, sat or sun
            crates/cli/tests/bad/malformed.yaml: document 3, out-of-range: error: the API server would refuse this: spec.schedule.hoursOfDay[0]: "24" at character 3 is not an hour: expected 0 to 23; midnight is 0
            crates/cli/tests/bad/malformed.yaml: document 3, out-of-range: error: 5-Spot would refuse this: spec.schedule.timezone: "Mars/Olympus" is not a time zone of the IANA database: write a name such as Europe/Zurich or UTC
            crates/cli/tests/bad/malformed.yaml: document 3, out-of-range: error: the API server would refuse this: spec.infrastructureSpec.apiVersion: "apps/v1" is not allowed: write a version of infrastructure.cluster.x-k8s.io or k0smotron.io
            crates/cli/tests/bad/malformed.yaml: document 3, out-of-range: error: the API server would refuse this: spec.priority: 300 is out of range: write a number from 0 to 255
            crates/cli/tests/bad/odd.yaml: document 1, never: warning: the schedule is never active: no instant fits; set enabled to false if that is meant
            crates/cli/tests/bad/odd.yaml: document 2, always: warning: the schedule is always active: the machine never leaves; a plain Machine does that, if it is meant
            crates/cli/tests/bad/odd.yaml: document 3, friday-night: warning: the night after fri ends at midnight: sat 00:00 to 06:59 is outside, so at sat 02:00 the machine is not lent; with sat added it is, and so is the evening of sat
            crates/cli/tests/bad/odd.yaml: document 4, said-twice: warning: daysOfWeek[1] adds nothing to the other items: remove it
            crates/cli/tests/bad/odd.yaml: document 4, said-twice: warning: hoursOfDay[1] adds nothing to the other items: remove it
            crates/cli/tests/bad/provider.yaml: document 1, no-key: warning: spec.bootstrapSpec.spec.version: k0smotron refuses "v1.34.1-k0s.0", which is not a version of k0s: write one such as v1.34.1+k0s.0
            crates/cli/tests/bad/provider.yaml: document 1, no-key: warning: spec.infrastructureSpec.spec.sshKeyRef: a RemoteMachine with neither sshKeyRef nor pool nor provisionJob never joins, and its deletion hangs: write sshKeyRef: {name: SECRET}, SECRET being a Secret whose key "value" holds the private SSH key
            crates/cli/tests/bad/provider.yaml: document 1, no-key: warning: spec.infrastructureSpec.spec.customCleanUpCommands: v1beta2 has no such field, so the API server would drop it: write cleanUpCommands, or use v1beta1
            crates/cli/tests/bad/provider.yaml: document 2, newer-field: warning: spec.bootstrapSpec.spec.provisioner: v1beta1 has no such field, so the API server would drop it: use v1beta2
            crates/cli/tests/bad/provider.yaml: document 2, newer-field: warning: spec.infrastructureSpec.spec.address: a RemoteMachine with neither address nor pool never joins: write the address of the host
            8 machines, 10 errors, 10 warnings
            exit 2
        "#]],
    );
    check(
        "5spot schedule lint -f examples/business-hours.yaml examples/workstation.yaml --from 2026-11-15",
        &expect![[r#"
            2 machines, 0 errors, 0 warnings
            exit 0
        "#]],
    );
}

#[test]
fn standard_input_and_lists_of_objects_are_read() {
    let example = fs::read_to_string(root().join("examples/workstation.yaml")).unwrap();
    let output = shell("5spot schedule explain -f - --at 2026-11-16T20:00", &example);
    assert!(
        String::from_utf8(output.stdout).unwrap().starts_with("workstation: lent at 2026-11-16T20:00:00Z\n")
    );
    let object: serde_json::Value = serde_saphyr::from_str(&example).unwrap();
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [object, object]}).to_string();
    let output = shell("5spot schedule lint -f - --from 2026-11-15", &list);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "2 machines, 0 errors, 0 warnings\n");
}

#[test]
fn a_machine_that_is_held_says_so() {
    let held = |line: &str, instead: &str| {
        let example = fs::read_to_string(root().join("examples/workstation.yaml")).unwrap();
        let text = example.replace(line, &format!("{line}\n{instead}"));
        let output = shell("5spot schedule explain -f - --at 2026-11-16T20:00", &text);
        String::from_utf8(output.stdout).unwrap()
    };
    let disabled = held("  schedule:", "    enabled: false");
    assert!(disabled.starts_with("workstation: held back at"), "{disabled}");
    assert!(disabled.contains("held     schedule.enabled is false: the machine is not lent"), "{disabled}");
    let killed = held("  clusterName: lab", "  killSwitch: true");
    assert!(killed.contains("held     killSwitch is true: the machine is not lent"), "{killed}");
}

#[test]
fn a_time_that_cannot_be_read_and_a_missing_schedule_are_said() {
    check(
        "5spot schedule explain --hours 9 --at tomorrow",
        &expect![[r#"
            5spot: "tomorrow" is not a time: write 2026-11-16T03:00:00Z, or 2026-11-16T03:00 or 2026-11-16 on local clocks
            exit 2
        "#]],
    );
    check(
        "5spot schedule preview",
        &expect![[r#"
            5spot: no schedule: give -f FILE, --days, --hours or --cron
            exit 2
        "#]],
    );
    check(
        "5spot schedule preview -f nothing.yaml",
        &expect![[r#"
            5spot: cannot read nothing.yaml: No such file or directory (os error 2)
            exit 2
        "#]],
    );
    check(
        "5spot schedule preview -f deploy/namespace.yaml",
        &expect![[r#"
            5spot: deploy/namespace.yaml holds no ScheduledMachine
            exit 2
        "#]],
    );
}
