{{- define "understudy.labels" -}}
app.kubernetes.io/name: understudy
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}
{{- define "understudy.selector" -}}
app.kubernetes.io/name: understudy
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}
{{- /* What all names begin with: as long as a release's name may be. Services may be called by no dot, and up to Kubernetes
1.33 by no digit first. */ -}}
{{- define "understudy.fullname" -}}
{{- $name := .Release.Name -}}
{{- with .Values.nameOverride -}}
{{- $name = ternary $name (printf "%s-%s" $name .) (contains . $name) -}}
{{- end -}}
{{- $name = ternary (printf "understudy-%s" $name) $name (regexMatch "^[0-9]" $name) -}}
{{- .Values.fullnameOverride | default ($name | replace "." "-" | trunc 53 | trimSuffix "-") -}}
{{- end -}}
{{- define "understudy.operator" -}}
{{ include "understudy.fullname" . }}-operator
{{- end -}}
{{- /* The operator's Deployments as a JSON list: one for each shard. Each Deployment has the name of its Lease. A Deployment of another
number of shards has another name, so Helm replaces all of them if the number changes. */ -}}
{{- define "understudy.operators" -}}
{{- $base := include "understudy.operator" . -}}
{{- $selector := include "understudy.selector" . | fromYaml -}}
{{- $count := int .Values.operator.shards -}}
{{- $listed := list -}}
{{- range $namespace, $index := .Values.operator.shardNamespaces -}}
{{- if ge (int $index) $count -}}
{{- fail (printf "operator.shardNamespaces.%s is %d, and operator.shards is %d: use a number below it, because the first shard is 0." $namespace (int $index) $count) -}}
{{- end -}}
{{- if and $.Values.watchNamespaces (not (has $namespace $.Values.watchNamespaces)) -}}
{{- fail (printf "operator.shardNamespaces names %s, which is not in watchNamespaces: correct or remove it." $namespace) -}}
{{- end -}}
{{- $listed = append $listed (printf "%s=%d" $namespace (int $index)) -}}
{{- end -}}
{{- $listed = join "," $listed -}}
{{- $found := list -}}
{{- range $index := until $count -}}
{{- $shard := printf "%d-of-%d" $index $count -}}
{{- $one := dict "name" $base "env" "" "listed" "" "selector" $selector -}}
{{- if gt $count 1 -}}
{{- $labels := merge (dict "understudy.dev/shard" $shard) $selector -}}
{{- $one = dict "name" (printf "%s-%s" $base $shard) "env" (printf "%d/%d" $index $count) "listed" $listed "selector" $labels -}}
{{- end -}}
{{- $found = append $found $one -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}
{{- /* The names of these Deployments as a JSON list. */ -}}
{{- define "understudy.operatorNames" -}}
{{- $names := list -}}
{{- range include "understudy.operators" . | fromJsonArray -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}
{{- define "understudy.masterSecret" -}}
{{ (.Values.masterSecret).name | default (printf "%s-master" (include "understudy.fullname" .)) }}
{{- end -}}
{{- define "understudy.webhook" -}}
{{ include "understudy.fullname" . }}-webhook
{{- end -}}
{{- /* Of a Service, whose name has at most 63 characters; that of a Deployment has 53 + 9. */ -}}
{{- define "understudy.metricsService" -}}
{{- $part := regexFind "-(operator|webhook)$" . -}}
{{ trimSuffix $part . | trunc 46 | trimSuffix "-" }}{{ $part }}-metrics
{{- end -}}
{{- /* The process that renews the webhook's self-signed certificate, and its account. */ -}}
{{- define "understudy.rotation" -}}
{{ include "understudy.fullname" . }}-rotation
{{- end -}}
{{- define "understudy.rotationSelector" -}}
app.kubernetes.io/name: understudy
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: rotation
{{- end -}}
{{- /* The web page with jobs, spares and nodes. The name of its Service has at most 63 characters: 53 + 10. */ -}}
{{- define "understudy.dashboard" -}}
{{ include "understudy.fullname" . }}-dashboard
{{- end -}}
{{- define "understudy.dashboardSelector" -}}
app.kubernetes.io/name: understudy
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: dashboard
{{- end -}}
{{- /* The kinds that the dashboard follows in the namespaces of jobs. */ -}}
{{- define "understudy.dashboardRules" -}}
- apiGroups: [understudy.dev]
  resources: [trainingjobs, injectedjobs, hotsparepools, recoveries]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods, events]
  verbs: [list, watch]
{{- end -}}
{{- /* (dict "root" . "account" NAME): the account's name in requests. */ -}}
{{- define "understudy.username" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ .account }}
{{- end -}}
{{- define "understudy.webhookSelector" -}}
app.kubernetes.io/name: understudy
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: webhook
{{- end -}}
{{- /* The Secret with tls.crt and tls.key that is mounted. That of cert-manager (-cert) is not the self-signed one (-tls): when the mode
is changed, programs of both modes run for a while, and no Secret has two writers. */ -}}
{{- define "understudy.webhookSecret" -}}
{{- if eq .Values.webhook.certificates.mode "SelfSigned" -}}
{{ include "understudy.webhook" . }}-tls
{{- else if eq .Values.webhook.certificates.mode "Provided" -}}
{{ required "webhook.certificates.secretName must name the Secret with tls.crt and tls.key where mode is Provided" .Values.webhook.certificates.secretName }}
{{- else -}}
{{ include "understudy.webhook" . }}-cert
{{- end -}}
{{- end -}}
{{- /* What the API server trusts, where the chart is to say it. */ -}}
{{- define "understudy.webhookBundle" -}}
{{- if eq .Values.webhook.certificates.mode "Provided" }}
caBundle: {{ required "webhook.certificates.caBundle must be the authority of the certificate, PEM in base64, where mode is Provided" .Values.webhook.certificates.caBundle | quote }}
{{- end }}
{{- end -}}
{{- define "understudy.webhookMetadata" -}}
name: {{ include "understudy.webhook" . }}
labels: {{- include "understudy.labels" . | nindent 2 }}
annotations:
  # The process that makes certificates writes caBundle in mode SelfSigned only.
  understudy.dev/certificate-mode: {{ .Values.webhook.certificates.mode }}
  {{- if eq .Values.webhook.certificates.mode "CertManager" }}
  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/{{ include "understudy.webhook" . }}
  {{- end }}
{{- end -}}
{{- /* (list IMAGE DIGEST): what a container runs. */ -}}
{{- define "understudy.image" -}}
{{ index . 0 }}{{ with index . 1 }}@{{ . }}{{ end }}
{{- end -}}
{{- /* Namespaces in which pods can be injected: those of the webhook's own selector, as far as the operator watches them. */ -}}
{{- define "understudy.injectedNamespaces" -}}
{{- $selector := deepCopy .Values.webhook.namespaceSelector -}}
{{- with .Values.watchNamespaces -}}
{{- $watched := dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" . -}}
{{- $_ := set $selector "matchExpressions" (append ($selector.matchExpressions | default list) $watched) -}}
{{- end -}}
{{- toYaml $selector -}}
{{- end -}}
{{- define "understudy.podMetadata" -}}
{{- /* of: .Values.operator, .Values.webhook or .Values.dashboard; selector: its labels, which win. */ -}}
labels: {{- merge (dict) (.selector | fromYaml) .of.podLabels | toYaml | nindent 2 }}
{{- with .of.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
{{- /* Where its pods go, and what goes before them; arguments as above. */ -}}
{{- define "understudy.placement" -}}
{{- $selector := dict "matchLabels" (.selector | fromYaml) -}}
{{- with .of.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .of.topologySpreadConstraints }}
topologySpreadConstraints:
{{- range . }}
{{- list (ternary . (set (deepCopy .) "labelSelector" $selector) (hasKey . "labelSelector")) | toYaml | nindent 2 }}
{{- end }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- else }}
# Replicas on nodes of their own, where there are as many.
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector: {{- toYaml $selector | nindent 12 }}
{{- end }}
{{- end -}}
{{- /* Of pods whose namespace enforces the restricted pod security standard. */ -}}
{{- define "understudy.podSecurity" -}}
runAsNonRoot: true
{{- $runAs := .Values.runAs | default dict }}
{{- with $runAs.user }}
runAsUser: {{ int . }}
{{- end }}
{{- with $runAs.group }}
runAsGroup: {{ int . }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}
{{- /* USER:GROUP, each empty if it is null. */ -}}
{{- define "understudy.sidecarRunAs" -}}
{{- $runAs := .Values.sidecar.runAs | default dict -}}
{{- with $runAs.user }}{{ int . }}{{ end }}:{{ with $runAs.group }}{{ int . }}{{ end -}}
{{- end -}}
{{- define "understudy.containerSecurity" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end -}}
{{- /* Ingress rules of a job's NetworkPolicy, beside the one for its own pods. 8478: where sidecars listen. */ -}}
{{- define "understudy.jobIngress" -}}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) -}}
{{- $operator := dict "namespaceSelector" $namespace "podSelector" (dict "matchLabels" (include "understudy.selector" . | fromYaml)) -}}
{{- $rules := list (dict "from" (list $operator) "ports" (list (dict "protocol" "TCP" "port" 8478))) -}}
{{- with .Values.networkPolicies.extraFrom -}}
{{- $rules = append $rules (dict "from" .) -}}
{{- end -}}
{{- toJson $rules -}}
{{- end -}}

{{- /* Rules that the schema cannot have. The programs check them, too, but their pods would then fail after the upgrade. */ -}}
{{- define "understudy.checkValues" -}}
{{- $ports := splitList "-" .Values.hostNetworkPorts -}}
{{- $first := first $ports | atoi -}}
{{- $last := last $ports | atoi -}}
{{- if or (lt $first 1024) (ge $first $last) (gt $last 65535) -}}
{{- fail (printf "hostNetworkPorts is %s: expected FIRST-LAST with at least 2 ports, from 1024 to 65535." .Values.hostNetworkPorts) -}}
{{- end -}}
{{- with .Values.operator.leaderElection -}}
{{- if or (ge (int .renewDeadline) (int .leaseDuration)) (gt (mul 4 (int .retryPeriod)) (int .renewDeadline)) -}}
{{- fail (printf "operator.leaderElection has leaseDuration %d, renewDeadline %d and retryPeriod %d: leaseDuration must be longer than renewDeadline, and renewDeadline at least 4 times retryPeriod." (int .leaseDuration) (int .renewDeadline) (int .retryPeriod)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* An egress rule: to the API server. */}}
{{- define "understudy.toApiServer" -}}
ports:
  {{- range .Values.networkPolicies.apiServer.ports }}
  - {protocol: TCP, port: {{ . }}}
  {{- end }}
{{- with .Values.networkPolicies.apiServer.to }}
to: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
