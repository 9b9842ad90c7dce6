//! What people are told by events.

/// Something people are told once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum News {
    /// The Machine was created.
    MachineCreated,
    /// The Machine was deleted.
    MachineDeleted,
    /// The window opened.
    ScheduleActive,
    /// The window closed.
    ScheduleInactive,
    /// The schedule was disabled.
    ScheduleDisabled,
    /// The kill switch was set.
    KillSwitchActivated,
    /// The drain begins.
    NodeDraining,
    /// The drain is complete.
    NodeDrained,
    /// The drain ended before it was complete.
    NodeDrainFailed,
    /// A taint is not ours.
    TaintOwnershipConflict,
    /// The finalizer was removed while the Machine still exists.
    FinalizerCleanupTimedOut,
    /// The owner takes the machine back.
    EmergencyReclaim,
    /// The schedule was disabled, so that the machine stays with its owner.
    EmergencyReclaimDisabledSchedule,
    /// The machine was taken back again and again.
    RapidReReclaim,
    /// A Node asked for a machine whose owner declared nothing.
    ReclaimRequestIgnored,
    /// A host that was handed back is in the cluster again.
    HostNotCleaned,
    /// The machine could not be lent, as things are.
    NotPrepared,
    /// A disruption budget, or something else, keeps a pod from being evicted.
    NodeDrainBlocked,
    /// A person must do something about the machine.
    NeedsAttention,
    /// The workload cluster cannot be reached.
    WorkloadUnreachable,
    /// No reclaim agent looks at the Node of a machine that is lent.
    ReclaimAgentMissing,
    /// The reclaim agent on the Node runs and is not ready.
    ReclaimAgentDegraded,
}

impl News {
    /// The reason of the event.
    pub fn word(self) -> &'static str {
        match self {
            Self::MachineCreated => "MachineCreated",
            Self::MachineDeleted => "MachineDeleted",
            Self::ScheduleActive => "ScheduleActive",
            Self::ScheduleInactive => "ScheduleInactive",
            Self::ScheduleDisabled => "ScheduleDisabled",
            Self::KillSwitchActivated => "KillSwitchActivated",
            Self::NodeDraining => "NodeDraining",
            Self::NodeDrained => "NodeDrained",
            Self::NodeDrainFailed => "NodeDrainFailed",
            Self::TaintOwnershipConflict => "TaintOwnershipConflict",
            Self::FinalizerCleanupTimedOut => "FinalizerCleanupTimedOut",
            Self::EmergencyReclaim => "EmergencyReclaim",
            Self::EmergencyReclaimDisabledSchedule => "EmergencyReclaimDisabledSchedule",
            Self::RapidReReclaim => "RapidReReclaim",
            Self::ReclaimRequestIgnored => "ReclaimRequestIgnored",
            Self::HostNotCleaned => "HostNotCleaned",
            Self::NotPrepared => "NotPrepared",
            Self::NodeDrainBlocked => "NodeDrainBlocked",
            Self::NeedsAttention => "NeedsAttention",
            Self::WorkloadUnreachable => "WorkloadUnreachable",
            Self::ReclaimAgentMissing => "ReclaimAgentMissing",
            Self::ReclaimAgentDegraded => "ReclaimAgentDegraded",
        }
    }

    /// Whether somebody should look.
    pub fn is_warning(self) -> bool {
        match self {
            Self::NodeDrainFailed
            | Self::TaintOwnershipConflict
            | Self::FinalizerCleanupTimedOut
            | Self::KillSwitchActivated
            | Self::EmergencyReclaim
            | Self::EmergencyReclaimDisabledSchedule
            | Self::RapidReReclaim
            | Self::ReclaimRequestIgnored
            | Self::HostNotCleaned
            | Self::NotPrepared
            | Self::NodeDrainBlocked
            | Self::NeedsAttention
            | Self::WorkloadUnreachable
            | Self::ReclaimAgentMissing
            | Self::ReclaimAgentDegraded => true,
            Self::MachineCreated
            | Self::MachineDeleted
            | Self::ScheduleActive
            | Self::ScheduleInactive
            | Self::ScheduleDisabled
            | Self::NodeDraining
            | Self::NodeDrained => false,
        }
    }
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// What.
    pub news: News,
    /// In a sentence.
    pub text: String,
}
