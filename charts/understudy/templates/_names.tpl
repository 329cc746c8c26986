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
{{- define "understudy.operator" -}}
{{ .Release.Name }}-operator
{{- end -}}
{{- define "understudy.webhook" -}}
{{ .Release.Name }}-webhook
{{- end -}}
{{- define "understudy.webhookSelector" -}}
app.kubernetes.io/name: understudy
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: webhook
{{- end -}}
{{- /* The Secret with tls.crt and tls.key. */ -}}
{{- define "understudy.webhookSecret" -}}
{{- if eq .Values.webhook.certificates.mode "Provided" -}}
{{ required "webhook.certificates.secretName must name the Secret with tls.crt and tls.key where mode is Provided" .Values.webhook.certificates.secretName }}
{{- else -}}
{{ include "understudy.webhook" . }}-tls
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
{{- if eq .Values.webhook.certificates.mode "CertManager" }}
annotations:
  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/{{ include "understudy.webhook" . }}
{{- end }}
{{- end -}}
