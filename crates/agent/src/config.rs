//! What to look for, as the agent's own ConfigMap says it.
//!
//! A configuration that cannot be read changes nothing: the last good one stands, and the error is shown. A ConfigMap
//! that is gone disarms at once: it is how the controller says that the machine has been given back.

use fivespot_api::AgentConfig;
use fivespot_api::names::AGENT_CONFIG_KEY;
use fivespot_cluster::{Item, Key};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::value::RawValue;

/// What is kept of the ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigText(pub Option<String>);

impl From<ConfigMap> for ConfigText {
    fn from(map: ConfigMap) -> Self {
        Self(map.data.and_then(|mut data| data.remove(AGENT_CONFIG_KEY)))
    }
}

impl Item for ConfigText {
    fn read(raw: &RawValue) -> Result<(Key, Self), serde_json::Error> {
        let map: ConfigMap = serde_json::from_str(raw.get())?;
        let name = map.metadata.name.clone().unwrap_or_default();
        Ok((Key::new(map.metadata.namespace.clone().unwrap_or_default(), name), map.into()))
    }
}

impl ConfigText {
    /// Reads it.
    pub fn parse(&self) -> Result<AgentConfig, String> {
        let text = self.0.as_ref().ok_or_else(|| format!("the ConfigMap has no key {AGENT_CONFIG_KEY}"))?;
        AgentConfig::parse(text).map_err(|error| error.to_string())
    }
}

/// What stands of what was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// What to look for; none if there is nothing.
    pub armed: Option<AgentConfig>,
    /// Why what is on the server is not used.
    pub refused: Option<String>,
}

impl Standing {
    /// What stands after the ConfigMap was seen to be this, or to be absent.
    #[must_use]
    pub fn after(&self, seen: Option<&ConfigText>) -> Self {
        match seen.map(ConfigText::parse) {
            None => Self::default(),
            Some(Err(why)) => Self { armed: self.armed.clone(), refused: Some(why) },
            Some(Ok(config)) if config.patterns().is_empty() => Self::default(),
            Some(Ok(config)) => Self { armed: Some(config), refused: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> ConfigText {
        ConfigText(Some(text.to_owned()))
    }

    fn patterns(standing: &Standing) -> Option<Vec<String>> {
        standing.armed.as_ref().map(|config| config.match_commands.clone())
    }

    #[test]
    fn the_last_good_configuration_stands_until_there_is_none() {
        let armed = Standing::default().after(Some(&text("match_commands = [\"idea\"]")));
        assert_eq!(patterns(&armed), Some(vec!["idea".to_owned()]));
        for bad in [text("match_comands = []"), text("match_commands = [\"\"]"), ConfigText(None)] {
            let kept = armed.after(Some(&bad));
            assert_eq!(patterns(&kept), patterns(&armed), "{bad:?}");
            assert!(kept.refused.is_some(), "{bad:?}");
            let mended = kept.after(Some(&text("match_commands = [\"idea\"]")));
            assert_eq!(mended, armed);
        }
        let changed = armed.after(Some(&text("match_commands = [\"steam\"]")));
        assert_eq!(patterns(&changed), Some(vec!["steam".to_owned()]));
        assert_eq!(changed.after(None), Standing::default());
        assert_eq!(changed.after(Some(&text(""))), Standing::default());
    }
}
