{{- define "relight.name" -}}
{{- printf "%s-relight" .Release.Name | replace "relight-relight" "relight" | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "relight.selector" -}}
app.kubernetes.io/name: relight
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "relight.labels" -}}
{{ include "relight.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "relight.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}
