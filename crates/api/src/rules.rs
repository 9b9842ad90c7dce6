//! Every bound, default and rule of `ScheduledMachine`, for the API server.
//!
//! - Rules are CEL with a message, not `pattern`: a failed pattern shows the user nothing but its regex.
//! - A rule stands on the smallest field it speaks of. The API server forgives a broken rule on a field that
//!   an update does not change, but not one on an ancestor of what changes; a rule on `spec.schedule` would
//!   therefore refuse our own `enabled: false` on an object from before the rule. The two that must stand
//!   there compare with the old value themselves (`optionalOldSelf`).
//! - What CRD rules cannot see is elsewhere: `namespace` of embedded objects in `deploy/policies`, the
//!   existence of a zone in `fivespot_core::zone`.

use crate::schema::{Field, field, must, overlay};
use crate::{DEFAULT_KUBECONFIG_KEY, DEFAULT_PRIORITY, DEFAULT_TIMEOUT, DEFAULT_TIMEZONE, ScheduledMachine};
use fivespot_core::limits::{
    API_VERSION_CHARS, BOOTSTRAP_GROUPS, COMMAND_CHARS, COMMANDS, CRON_CHARS, DAYS_CHARS, DAYS_ITEMS,
    DURATION_CHARS, DURATION_MAX_HOURS, HOURS_CHARS, HOURS_ITEMS, INFRASTRUCTURE_GROUPS, LABEL_VALUE_CHARS,
    OBJECT_NAME_CHARS, PRIORITY, RESERVED_DOMAINS, TAINT_EFFECTS, TAINT_KEY_CHARS, TAINTS, TEMPLATE_ENTRIES,
    TIMEZONE_CHARS,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use kube::core::cel::{Message, Rule};
use serde_json::{Value, json};

/// The phases a machine goes through.
const PHASES: [&str; 8] =
    ["Pending", "Active", "ShuttingDown", "Inactive", "Disabled", "Terminated", "EmergencyRemove", "Error"];

/// The annotation by which the definition tells `deploy/policies/embedded-authorization.yaml` which resource an
/// embedded kind is; its name is KIND.GROUP.
const EMBEDDED_KIND: &str = "embedded.5spot.finos.org";

/// Providers that are known from the start. An administrator annotates others.
const EMBEDDED_KINDS: [(&str, &str); 5] = [
    ("K0sWorkerConfig.bootstrap.cluster.x-k8s.io", "k0sworkerconfigs"),
    ("KubeadmConfig.bootstrap.cluster.x-k8s.io", "kubeadmconfigs"),
    ("RemoteMachine.infrastructure.cluster.x-k8s.io", "remotemachines"),
    ("Metal3Machine.infrastructure.cluster.x-k8s.io", "metal3machines"),
    ("ByoMachine.infrastructure.cluster.x-k8s.io", "byomachines"),
];

/// The definition of `ScheduledMachine` that 5-Spot installs.
///
/// # Panics
/// Never: it has no input, so it would for everybody or for nobody, and every test of the API calls it.
#[expect(clippy::expect_used, reason = "see Panics")]
pub fn scheduled_machine_crd() -> CustomResourceDefinition {
    let mut crd = json!(ScheduledMachine::crd());
    for (kind, resource) in EMBEDDED_KINDS {
        crd["metadata"]["annotations"][format!("{EMBEDDED_KIND}/{kind}")] = json!(resource);
    }
    let schema = crd
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema")
        .expect("the derived definition has one version with a schema");
    // Kubernetes lets a CRD restrict the name, and only the name, of its objects.
    schema["properties"]["metadata"] = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    overlay(schema, table()).expect("the table speaks of fields that exist");
    serde_json::from_value(crd).expect("the overlay keeps it a definition")
}

fn table() -> Vec<Field> {
    let embedded = ["apiVersion", "kind", "spec"];
    vec![
        field("metadata.name").max_chars(LABEL_VALUE_CHARS),
        field("spec").required(&["schedule", "clusterName", "bootstrapSpec", "infrastructureSpec"]),
        field("spec.schedule").rule(says_when()).rule(cron_or_lists()),
        field("spec.schedule.daysOfWeek").default(json!([])).max_items(DAYS_ITEMS),
        field("spec.schedule.daysOfWeek[]").max_chars(DAYS_CHARS).rule(days()),
        field("spec.schedule.hoursOfDay").default(json!([])).max_items(HOURS_ITEMS),
        field("spec.schedule.hoursOfDay[]").max_chars(HOURS_CHARS).rule(hours()),
        field("spec.schedule.cron").max_chars(CRON_CHARS).rule(cron_fields()).rule(cron_ascends()),
        field("spec.schedule.timezone").default(DEFAULT_TIMEZONE).max_chars(TIMEZONE_CHARS).rule(timezone()),
        field("spec.schedule.enabled").default(true),
        field("spec.clusterName").max_chars(LABEL_VALUE_CHARS).rule(object_name()).rule(must(
            "self == oldSelf",
            "clusterName cannot be changed: delete this object and create another",
        )),
        field("spec.bootstrapSpec").required(&embedded),
        field("spec.bootstrapSpec.apiVersion").max_chars(API_VERSION_CHARS).rule(group_of(&BOOTSTRAP_GROUPS)),
        field("spec.bootstrapSpec.kind").max_chars(LABEL_VALUE_CHARS).rule(kind()),
        field("spec.bootstrapSpec.spec").anything(),
        field("spec.infrastructureSpec").required(&embedded),
        field("spec.infrastructureSpec.apiVersion")
            .max_chars(API_VERSION_CHARS)
            .rule(group_of(&INFRASTRUCTURE_GROUPS)),
        field("spec.infrastructureSpec.kind").max_chars(LABEL_VALUE_CHARS).rule(kind()),
        field("spec.infrastructureSpec.spec").anything(),
        field("spec.machineTemplate.labels")
            .max_entries(TEMPLATE_ENTRIES)
            .rule(keys_are_qualified())
            .rule(keys_are_free()),
        field("spec.machineTemplate.labels{}").max_chars(LABEL_VALUE_CHARS).rule(label_value()),
        field("spec.machineTemplate.annotations")
            .max_entries(TEMPLATE_ENTRIES)
            .rule(keys_are_qualified())
            .rule(keys_are_free()),
        field("spec.priority").default(DEFAULT_PRIORITY).between(PRIORITY),
        duration_field("spec.gracefulShutdownTimeout"),
        duration_field("spec.nodeDrainTimeout"),
        field("spec.killSwitch").default(false),
        field("spec.killIfCommands").max_items(COMMANDS),
        field("spec.killIfCommands[]")
            .max_chars(COMMAND_CHARS)
            .rule(no_control_characters())
            .rule(not_blank()),
        field("spec.nodeTaints").max_items(TAINTS).keyed_by(&["key", "effect"]),
        field("spec.nodeTaints[]").required(&["key", "effect"]),
        field("spec.nodeTaints[].key").max_chars(TAINT_KEY_CHARS).rule(qualified_key()).rule(free_key()),
        field("spec.nodeTaints[].value").max_chars(LABEL_VALUE_CHARS).rule(label_value()),
        field("spec.nodeTaints[].effect").one_of(&TAINT_EFFECTS),
        field("spec.kubeconfigSecretRef").required(&["name"]),
        field("spec.kubeconfigSecretRef.name").max_chars(OBJECT_NAME_CHARS).rule(object_name()),
        field("spec.kubeconfigSecretRef.key")
            .default(DEFAULT_KUBECONFIG_KEY)
            .max_chars(OBJECT_NAME_CHARS)
            .rule(secret_key()),
        field("status.phase").one_of(&PHASES),
        field("status.conditions").keyed_by(&["type"]),
    ]
}

/// Rules on `spec.schedule` look away while none of the fields they speak of changes: see the module's head.
/// Both lists have a default, which the server fills in before it asks, so they are always there.
fn on_schedule(cel: &str, message: &str) -> Rule {
    let unchanged = "oldSelf.hasValue() && oldSelf.value().daysOfWeek == self.daysOfWeek && \
                     oldSelf.value().hoursOfDay == self.hoursOfDay && has(oldSelf.value().cron) == has(self.cron) && \
                     (!has(self.cron) || oldSelf.value().cron == self.cron)";
    must(format!("{cel} || ({unchanged})"), message).optional_old_self(true)
}

fn says_when() -> Rule {
    on_schedule(
        "self.daysOfWeek.size() + self.hoursOfDay.size() > 0 || has(self.cron)",
        "the schedule never says when: give daysOfWeek, hoursOfDay or cron",
    )
}

fn cron_or_lists() -> Rule {
    on_schedule(
        "!has(self.cron) || self.daysOfWeek.size() + self.hoursOfDay.size() == 0",
        "cron excludes daysOfWeek and hoursOfDay: keep the one or the others",
    )
    .field_path(".cron")
}

/// `self` matches the regular expression, which is anchored at both ends.
fn matches(regex: &str) -> String {
    format!("self.matches({})", quote(&format!("^({regex})$")))
}

/// A text as a CEL string literal.
fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

/// `element`, ranges of it, and comma lists of both.
fn list_of(element: &str) -> String {
    let range = format!("({element})(-({element}))?");
    format!("{range}(,{range})*")
}

/// Upper and lower case are the same, among ASCII letters: RE2 would also take the long s for an s.
fn matches_any_case(regex: &str) -> String {
    format!("{} && {}", matches(r"[\t -~]*"), matches(&format!("(?i:{regex})")))
}

fn days() -> Rule {
    must(
        matches_any_case(&list_of("mon|tue|wed|thu|fri|sat|sun")),
        "not a day: write mon, tue, wed, thu, fri, sat or sun, a range such as mon-fri, or a comma list of these, \
         without spaces",
    )
}

fn hours() -> Rule {
    must(
        matches(&list_of("[01]?[0-9]|2[0-3]")),
        "not an hour: write 0 to 23, a range such as 9-17 or 22-6 (both ends included), or a comma list of these, \
         without spaces",
    )
}

fn timezone() -> Rule {
    must(
        matches("[A-Za-z0-9+_-]+(/[A-Za-z0-9+_-]+)*"),
        "not a time zone: write an IANA name such as Europe/Zurich or UTC",
    )
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
/// Sunday comes first, as 0, and ends a range as 7.
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

fn cron_fields() -> Rule {
    let field = |values: &[&str], step: &str| {
        let ranges: Vec<_> =
            values.iter().map(|value| format!("({value})(-({value})(/({step}))?)?")).collect();
        let part = format!(r"(\*(/({step}))?|{})", ranges.join("|"));
        format!("{part}(,{part})*")
    };
    let fields = [
        field(&["[0-5]?[0-9]"], "0?[1-9]|[1-5][0-9]"),
        field(&["[01]?[0-9]|2[0-3]"], "0?[1-9]|1[0-9]|2[0-3]"),
        field(&["0?[1-9]|[12][0-9]|3[01]"], "0?[1-9]|[12][0-9]|3[01]"),
        field(&["0?[1-9]|1[0-2]", &MONTHS.join("|")], "0?[1-9]|1[0-2]"),
        field(&["0?[0-7]", &WEEKDAYS.join("|")], "0?[1-7]"),
    ];
    must(
        matches_any_case(&fields.join(r"[ \t]+")),
        "not a cron expression: write five fields, minute (0-59) hour (0-23) day-of-month (1-31) month (1-12 or \
         jan-dec) day-of-week (0-7 or sun-sat), each *, a value, a range or a comma list, * and ranges with an \
         optional /step, such as \"* 9-16 * * mon-fri\"",
    )
}

/// CEL could split the text and compare numbers, but the server's cost estimate does not follow a split. So
/// the pairs that run backwards are spelled out as one regular expression.
fn cron_ascends() -> Rule {
    let zero = |tens: u8| if tens == 0 { "0?".to_owned() } else { tens.to_string() };
    let less_tens = (1..=5)
        .map(|t| if t == 1 { "1[0-9]-0?[0-9]".to_owned() } else { format!("{t}[0-9]-[0-{}]?[0-9]", t - 1) });
    let less_units = (0..=5).flat_map(|t| (1..=9).map(move |u| format!("{0}{u}-{0}[0-{1}]", zero(t), u - 1)));
    let names = |names: &'static [&'static str], first: usize| {
        (first + 1..names.len()).map(move |i| format!("{}-({})", names[i], names[first..i].join("|")))
    };
    let backwards: Vec<String> =
        less_tens.chain(less_units).chain(names(&MONTHS, 0)).chain(names(&WEEKDAYS, 1)).collect();
    let regex = format!(r"(?i:(^|[ \t,])({})([ \t,/]|$))", backwards.join("|"));
    must(
        format!("!self.matches({})", quote(&regex)),
        "a range runs backwards: write it as two, such as 22-23,0-6",
    )
}

fn group_of(groups: &[&str]) -> Rule {
    let alternatives = groups.join("|").replace('.', r"\.");
    must(
        matches(&format!("({alternatives})/v[0-9][0-9a-z]*")),
        format!("not allowed here: write group and version, the group {}", groups.join(" or ")),
    )
}

fn kind() -> Rule {
    must(
        matches("[A-Z][A-Za-z0-9]*"),
        "not a kind: write letters and digits that begin with a capital, such as RemoteMachine",
    )
}

/// RFC 1123 subdomain.
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
/// What a label value is, and the name part of a key.
const LABEL: &str = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?";

fn object_name() -> Rule {
    must(
        matches(SUBDOMAIN),
        "not an object name: write lower case letters, digits, \"-\" or \".\", beginning and ending with a letter \
         or digit",
    )
}

fn secret_key() -> Rule {
    must(matches("[-._a-zA-Z0-9]+"), "not a key of a Secret: write letters, digits, \"-\", \"_\" or \".\"")
}

fn label_value() -> Rule {
    must(
        matches(&format!("({LABEL})?")),
        "not a label value: write at most 63 letters, digits, \"-\", \"_\" or \".\", beginning and ending with a \
         letter or digit",
    )
}

/// CEL that holds if `text` is a qualified name. The regular expression of a subdomain cannot bound its length.
fn is_qualified(text: &str) -> String {
    let shape = quote(&format!("^({SUBDOMAIN}/)?{LABEL}$"));
    let length = quote(&format!("^([^/]{{1,{OBJECT_NAME_CHARS}}}/)?[^/]+$"));
    format!("({text}.matches({shape}) && {text}.matches({length}))")
}

fn reserved_regex() -> String {
    quote(&format!(r"^([^/]*\.)?({})/", RESERVED_DOMAINS.join("|").replace('.', r"\.")))
}

const QUALIFIED_HELP: &str = "write [prefix/]name, the prefix a DNS subdomain in lower case, the name 1 to 63 \
                              letters, digits, \"-\", \"_\" or \".\" that begins and ends with a letter or digit";

fn reserved_help() -> String {
    format!("keys under {} belong to others; use a domain of your own", RESERVED_DOMAINS.join(", "))
}

fn qualified_key() -> Rule {
    must(is_qualified("self"), format!("not a qualified name: {QUALIFIED_HELP}"))
}

fn free_key() -> Rule {
    must(format!("!self.matches({})", reserved_regex()), format!("reserved: {}", reserved_help()))
}

/// The message names the first bad key, since the path of a map cannot.
fn bad_keys(bad: &str, what: &str) -> Rule {
    let message = format!("self.filter(k, {bad})[0] + {}", quote(&format!(" {what}")));
    Rule::new(format!("!self.exists(k, {bad})")).message(Message::Expression(message))
}

fn keys_are_qualified() -> Rule {
    bad_keys(&format!("!{}", is_qualified("k")), &format!("is not a qualified name: {QUALIFIED_HELP}"))
}

fn keys_are_free() -> Rule {
    bad_keys(&format!("k.matches({})", reserved_regex()), &format!("is reserved: {}", reserved_help()))
}

fn duration_field(path: &'static str) -> Field {
    let notation = "([0-9]+h)?([0-9]+m)?([0-9]+s)?";
    // Leading zeros aside, more digits than these are beyond a day and may be beyond what CEL can hold.
    let sane = "(0*[0-9]{1,5}h)?(0*[0-9]{1,5}m)?(0*[0-9]{1,5}s)?";
    field(path)
        .default(DEFAULT_TIMEOUT)
        .max_chars(DURATION_CHARS)
        .rule(must(
            format!("self != '' && {}", matches(notation)),
            "not a duration: write hours, minutes and seconds in this order, each at most once, such as 90s, 5m or \
             1h30m",
        ))
        .rule(must(
            format!("!{} || self == '' || ({} && duration(self) <= duration('{DURATION_MAX_HOURS}h'))", matches(notation), matches(sane)),
            format!("too long: at most {DURATION_MAX_HOURS}h are allowed"),
        ))
}

fn no_control_characters() -> Rule {
    must(
        format!("!self.matches({})", quote(r"\p{Cc}")),
        "has a control character: write the program's name as ps shows it",
    )
}

fn not_blank() -> Rule {
    must("self.matches('[^ ]')", "is blank and would match every program: write a program's name")
}
